"""Checkpoints from the Hugging Face hub: downloaded, or from the cache if the hub cannot be reached."""

import logging
from pathlib import Path

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from embedder.errors import ModelNotFoundError

_LOOKUP_TIMEOUT_S = 5.0
SMALL_FILES = ["*.json", "*.jinja", "*.txt", "*.model"]  # configuration and tokenizer, including `spiece.model`

logger = logging.getLogger(__name__)


def fetch_checkpoint(model_id: str, revision: str | None) -> Path:
    """The cache folder of a checkpoint, named after its commit; raises ModelNotFoundError."""
    try:
        return _download(model_id, revision)
    except Exception as error:  # the hub's client passes on errors of several libraries
        unreachable = error
    try:
        cached = Path(snapshot_download(model_id, revision=revision, local_files_only=True, allow_patterns=SMALL_FILES))
        if not any(file.suffix in (".safetensors", ".bin") for file in cached.iterdir()):
            raise FileNotFoundError("the download did not get as far as the weights")
    except Exception:
        raise ModelNotFoundError(_explain(model_id, revision, unreachable)) from unreachable
    logger.info("%s: the hub could not be reached, using the copy in %s", model_id, cached)
    return cached


def _download(model_id: str, revision: str | None) -> Path:
    # Requested separately, because snapshot_download has no timeout for this.
    info = HfApi().model_info(model_id, revision=revision, timeout=_LOOKUP_TIMEOUT_S)
    names = [sibling.rfilename for sibling in info.siblings or ()]
    # Many repositories have the same weights in several formats; one is enough.
    safe = any(name.startswith("model") and ".safetensors" in name for name in names)
    weights = "model*.safetensors*" if safe else "pytorch_model*.bin*"
    return Path(snapshot_download(model_id, revision=revision, allow_patterns=[weights, *SMALL_FILES]))


def _explain(model_id: str, revision: str | None, error: Exception) -> str:
    """The message: which checkpoint was requested, why it was not found, and what to do."""
    if isinstance(error, HFValidationError):
        return f"model '{model_id}' is neither a folder on this machine nor a hub id such as owner/name"
    if isinstance(error, GatedRepoError):
        return (
            f"model '{model_id}' is gated: accept its terms at {constants.ENDPOINT}/{model_id}, "
            "then log in with `hf auth login`"
        )
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"there is no model '{model_id}' at {constants.ENDPOINT}, or it is private, and there is no folder of "
            "that name: check the spelling, give a local folder, or log in with `hf auth login`"
        )
    if isinstance(error, RevisionNotFoundError):
        return f"model '{model_id}' has no revision '{revision}': give one of its branches, tags or commits"
    first_line = (str(error) or type(error).__name__).splitlines()[0]
    reason = f"{constants.ENDPOINT} could not be reached ({first_line})"
    if isinstance(error, OfflineModeIsEnabled):
        reason = "HF_HUB_OFFLINE forbids a download"
    arguments = f"{model_id} --revision {revision}" if revision else model_id
    return (
        f"model '{model_id}' is neither a folder nor in the cache {constants.HF_HUB_CACHE}, and {reason}. "
        f"Run `hf download {arguments} --local-dir checkpoint` where there is a network, copy that folder here, and "
        "give `--model ./checkpoint`"
    )
