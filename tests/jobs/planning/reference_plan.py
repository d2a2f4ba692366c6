"""A reference model of planning, in plain Python over dicts: what happens to each image of a source, and why."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from index.collection.rows import FILTERED
from jobs.sources.listing import FILE_FACTS, REFUSED_STAGE, UNREADABLE
from tests.jobs.planning.decisions import Decision, Image, Job, Keep, Run, Status


class ReferencePlan:
    """The `decisions` of a job by image id, and the `live` rows before it. `runs` come oldest first."""

    def __init__(self, runs: Sequence[Run], listing: Sequence[Image], job: Job) -> None:
        self.job, self.live, self.rewritten = job, dict[str, Image](), dict[str, str]()
        for run in (run for run in runs if run.committed):
            self.live = {name: row for name, row in self.live.items() if name not in run.deletes}
            self.live |= {row["image_id"]: row for rows in run.blocks for row in rows}
        self.own = {name for name, row in self.live.items() if row["run"].source == job.source}
        self.same = {name: self._postpone(row) for name, row in self.live.items() if row["run"].model == job.model}
        listed = {image["image_id"] for image in listing}
        missing = {name: self.live[name] for name in self.own - listed}
        delete = job.missing == "delete" and all(image["error_reason"] != UNREADABLE for image in listing)
        # The row of an entry that a listing refused stands for no image.
        gone = {name for name, row in missing.items() if delete or row["error_stage"] == REFUSED_STAGE}
        self.by_content = delete or len(gone) < len(missing)
        self.departed = Counter(row["content_hash"] for row in missing.values() if row["content_hash"])
        self.decisions = {name: Decision("delete" if name in gone else "keep", "gone", "missing") for name in missing}
        listings = {job.source: [self._judge(image) for image in listing]}
        mixed = {row["run"].source for row in self.live.values() if row["run"].model != job.model}
        self.runs = [run for run in runs if run.committed or run.source in mixed | {job.source}]
        for name, row in self.live.items():
            if row["run"].source in mixed and name not in listed | gone:
                # An index has vectors of one model, so such a source is embedded again, and its failures are retried.
                retried = () if row["error_stage"] in (REFUSED_STAGE, "filter") else ("error_stage", "error_reason")
                listings.setdefault(row["run"].source, []).append({**row, **dict.fromkeys(retried)})
        for source, images in listings.items():
            self._plan(images, job if source == job.source else self._last_job(source))

    def _judge(self, image: Image) -> Image:
        """The image, refused if the filter leaves it out. Notes why a row that covers it has to be written again."""
        name, keep, row = image["image_id"], self.job.keep, self.same.get(image["image_id"])
        if row and name in self.own and (row["label"], row["run"].exif) != (image["label"], self.job.exif):
            self.rewritten[name] = "relabelled" if row["label"] != image["label"] else "other_exif"
        row = row if covers(row, image) else None
        out, judged = keep.judge(with_facts(image, row))
        out = out and not image["error_reason"]
        if row:
            was_out, failed = row["error_reason"] == FILTERED, row["error_reason"] not in (None, FILTERED)
            stays = was_out if out else failed or row["run"].keep == keep.key or (judged and not was_out)
            self.rewritten |= {} if stays else {name: self.rewritten.get(name, "other_keep")}
        return {**with_facts(image, row), "error_stage": "filter", "error_reason": FILTERED} if out else image

    def _plan(self, images: Sequence[Image], job: Job) -> None:
        """Decide on the images of a source."""
        rows = {name: row for name, row in self.same.items() if name not in self.rewritten}
        covered = {image["image_id"] for image in images if covers(rows.get(image["image_id"]), image)}
        run = self._unfinished(job) if len(covered) < len(images) else None
        labels = {image["image_id"]: (image["label"],) for image in images}
        # A file with an image that is gone, or has another label, would bring it back.
        blocks = [b for b in (run.blocks if run else []) if all(r["label"] in labels.get(r["image_id"], ()) for r in b)]
        rows |= {row["image_id"]: self._postpone(_retry(row)) for block in blocks for row in block}
        usable = [r for r in self.runs if r.model == job.model and r.exif >= job.exif and job.keep.can_judge(r.keep)]
        pool = [r for u in usable for b in u.blocks if b not in blocks for r in b if r["error_stage"] != REFUSED_STAGE]
        for image in images:
            name, status, row = image["image_id"], self._status(image), rows.get(image["image_id"])
            if row and covers(row, image) and not _is_altered(image, row, job):
                why = "resumed" if name not in covered else "postponed" if self.live[name]["retryable"] else "unchanged"
                self.decisions[name] = Decision("keep", why, "unchanged" if name in covered else status)
            elif reason := image["error_reason"]:
                self.decisions[name] = Decision("refuse", "filtered" if reason == FILTERED else "refused", status)
            else:
                copy = _find_copy(image, pool, job, by_content=self.by_content or job.verify_hash)
                self.decisions[name] = Decision(
                    "copy" if copy else "embed", self._why(image, status, copy, job), status
                )

    def _status(self, image: Image) -> Status:
        row = self.same.get(image["image_id"])
        if row is None:
            return "other_model" if image["image_id"] in self.live else "new"
        return "retried" if row["retryable"] and covers({**row, "retryable": False}, image) else "changed"

    def _why(self, image: Image, status: Status, copy: Image | None, job: Job) -> str:
        name, content_hash = image["image_id"], copy and copy["content_hash"]
        if job is self.job and name not in self.own and self.departed[content_hash] > 0:
            self.departed[content_hash] -= 1
            return "moved"
        if status != "changed":
            return "copied" if copy and status == "new" else status
        if covers(self.same[name], image) and name in self.rewritten:
            return self.rewritten[name]
        return "touched" if copy and content_hash == self.same[name]["content_hash"] else "changed"

    def _postpone(self, row: Image) -> Image:
        return {**row, "retryable": row["retryable"] and row["image_id"] not in self.job.postponed}

    def _unfinished(self, job: Job) -> Run | None:
        """The newest run that this job continues: not one that is older than a live run, which would hide its rows."""
        newer = self.runs[max((at for at, run in enumerate(self.runs, 1) if run.committed), default=0) :]
        wanted = (job.source, job.model, job.keep.key, job.exif)
        return next((run for run in newer[::-1] if (run.source, run.model, run.keep, run.exif) == wanted), None)

    def _last_job(self, source: str) -> Job:
        """A job that leaves out what the last one of another source left out, and reads EXIF if that did."""
        run = next(run for run in self.runs[::-1] if run.committed and run.source == source)
        return replace(self.job, source=source, keep=Keep(key=run.keep), exif=run.exif)


def covers(row: Image | None, image: Image) -> bool:
    """Whether a row is final and no value that is known on both sides indicates that the image changed."""
    if row is None or row["retryable"] or row["uri"] != image["uri"]:
        return False
    known = (name for name in ("size", "modified", "etag") if None not in (row[name], image[name]))
    same = {name: row[name] == image[name] for name in known}
    same["modified"] = same.get("modified", True) or same.get("etag", False)  # written again with the same content
    # A link that was broken had neither size nor time.
    repaired = row["error_reason"] and any(row[each] is None is not image[each] for each in ("size", "modified"))
    return all(same.values()) and not repaired and image["content_hash"] in (None, row["content_hash"])


def with_facts(image: Image, row: Image | None) -> Image:
    """The image with what a row knows of its file."""
    size = row["size"] if row and image["size"] is None else image["size"]
    return {**image, **{name: row[name] for name in FILE_FACTS.names}, "size": size} if row else image


def _is_altered(image: Image, row: Image, job: Job) -> bool:
    """Whether an image that seems unchanged has other bytes; those of web addresses have been compared before."""
    unread = image["error_reason"] or row["content_hash"] is None or image["uri"].startswith("http")
    return job.verify_hash and not unread and job.hash_of(image["uri"]) not in (None, row["content_hash"])


def _find_copy(image: Image, pool: Sequence[Image], job: Job, *, by_content: bool) -> Image | None:
    """The row whose outcome an image gets: the newest of its id, or of its address, or one with its content."""
    embedded = {row["content_hash"]: row for row in pool if not row["error_reason"]}
    ids, uris = ({row[key]: row for row in pool} for key in ("image_id", "uri"))
    row = None if job.verify_hash else ids.get(image["image_id"], uris.get(image["uri"]))
    row = row if row and covers(_retry(row), image) else None
    row = embedded.get(row["content_hash"]) if row and row["error_reason"] == FILTERED else row
    row = row if row and (image["image_id"] in ids or not row["error_reason"]) else None
    if not row and by_content and image["size"] in {each["size"] for each in embedded.values()}:
        row = embedded.get(job.hash_of(image["uri"]))
    # A row that is embedded again, though it is not listed, is not judged.
    out, judged = (False, True) if "run" in image else job.keep.judge(with_facts(image, row))
    return row if row and not out and (row["error_reason"] or judged or job.keep.measured) else None


def _retry(row: Image) -> Image:
    """A row that is not live: whatever could not be fetched then is tried again."""
    return {**row, "retryable": row["retryable"] or row["error_stage"] == "fetch"}
