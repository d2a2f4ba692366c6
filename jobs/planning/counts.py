"""How the images of a source compare with their rows."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Images of the source, compared with their rows.

    `listed` = `unchanged` + `new` + `changed` + `retried` + `other_model`; changed metadata counts as changed. Of the
    images that are not unchanged, `resumed` were written by a run that did not end, `reused` take the vector of the
    same content (they were moved, copied, touched or relabelled), `refused` are rejects by the listing itself (a line
    that cannot be read, a repeated id), and `to_embed` need the model. `replaced` take the ids of other sources'
    images. `missing` have a row and are not listed; of these, `moved` are listed elsewhere, and `deleted` lose their
    row.
    """

    listed: int = 0
    unchanged: int = 0
    new: int = 0
    changed: int = 0
    retried: int = 0
    other_model: int = 0
    resumed: int = 0
    reused: int = 0
    refused: int = 0
    to_embed: int = 0
    replaced: int = 0
    missing: int = 0
    moved: int = 0
    deleted: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        mine, others = asdict(self), asdict(other)
        return Counts(**{name: mine[name] + others[name] for name in mine})
