"""What happens to each image of a listing, and why, in SQL over the listing and the catalog of a collection.

Statements run in the catalog of the listing, with the view `listing`, but for those of `MISSING`; `{c}` is the name of
the collection's catalog. What else is in braces is what the job says: texts, numbers of runs, and columns. They are
told of the `runs`, and of the ids `postponed`. Each step makes a view, or a table if few images are in it:

- `others`: the rows of other models. `missing`: rows of the source that are not listed; those `gone` are deleted.
- `known`: the live rows, with what their runs say of them.
- `images`: the listing. `number` identifies an image; from `{relisted}` on they are rows that are embedded again.
- `compared`, `judged`: each image with its live row of the same model. `stays`: the row covers it as it is.
- `undecided`: the images that do not stay, or may not.
- `settled`: the same after the run that is resumed. `kept`: nothing is to do.
- `decisions`: the action of each image, and why; `seq` is the row whose outcome it takes.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from index.collection.catalog.catalog import FILE_BITS
from index.collection.rows import FILTERED, STATE_COLUMNS
from jobs.sources.listing import REFUSED_STAGE, WEB

_STATE = ", ".join(STATE_COLUMNS)
_IMAGE = "image_id, uri, content_hash, size, modified, etag, error_stage, error_reason"
_EMBEDDED = "error_reason IS NULL AND content_hash IS NOT NULL"


def covers(row: str, image: str, retried: str) -> str:
    """Whether a row says all of an image: it is not `retried`, and nothing indicates that the image changed.

    A value that one side lacks (a list has no sizes) indicates nothing. An object that was rewritten with the same
    content has a new time, so if both ETags are known they decide. A broken link had neither size nor time, so having
    them now is a change. The content that was last found at a web address decides. If the listing refuses an image, or
    has refused it before, it must do so again, for the same reason.
    """
    same_etag = f"{row}.etag = {image}.etag"
    repaired = " OR ".join(f"({row}.{name} IS NULL AND {image}.{name} IS NOT NULL)" for name in ("size", "modified"))
    refusals = (
        f"CASE WHEN {each}.error_stage = '{REFUSED_STAGE}' THEN {each}.error_reason END" for each in (row, image)
    )
    return f"""(
        {row}.image_id IS NOT NULL AND NOT {retried}
        AND {row}.uri IS NOT DISTINCT FROM {image}.uri
        AND coalesce({same_etag}, true)
        AND coalesce({row}.size = {image}.size, true)
        AND (coalesce({row}.modified = {image}.modified, true) OR coalesce({same_etag}, false))
        AND ({row}.error_reason IS NULL OR NOT ({repaired}))
        AND {" IS NOT DISTINCT FROM ".join(refusals)}
        AND ({image}.content_hash IS NULL OR coalesce({row}.content_hash = {image}.content_hash, false))
    )"""


def retried(row: str = "") -> str:
    """Whether a row that is not live is tried again: the source may have been fixed since it could not be fetched."""
    return f"coalesce({row}retryable OR {row}error_stage = 'fetch', false)"


def named(prefix: str, columns: Sequence[str]) -> str:
    """Columns of metadata as l0, l1, …, for example."""
    return ", ".join(f"{column} AS {prefix}{number}" for number, column in enumerate(columns)) or "NULL AS nothing"


def relabelled(columns: int, retyped: Iterable[int]) -> str:
    """Whether so many columns of metadata of an image differ from those of its row, or its run is to be `retyped`."""
    differs = [f"image.l{number} IS DISTINCT FROM row.r{number}" for number in range(columns)]
    return f"({' OR '.join([f'row.run IN ({numbers(retyped)})', *differs])})"


def numbers(runs: Iterable[int]) -> str:
    """Runs as constants, since queries of them would become joins; not empty, which would be no SQL."""
    return ", ".join(map(str, [-1, *runs]))


def filled(text: str, values: Mapping[str, object]) -> str:
    """Statements with what is in braces."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


MISSING = f"""
CREATE OR REPLACE TABLE others AS SELECT image_id, run FROM live_rows WHERE run NOT IN ({{same}});
CREATE OR REPLACE TABLE missing AS
SELECT seq, image_id, content_hash, error_reason,
       -- A row of a refused entry stands for no image.
       {{may_delete}} OR coalesce(error_stage = '{REFUSED_STAGE}', false) AS gone
FROM live_rows ANTI JOIN {{listing}} USING (image_id) WHERE run IN ({{own}});
"""
MISSING_COUNTS = """
SELECT count(*) AS missing, count(*) FILTER (gone) AS deleted,
       count(*) FILTER (NOT gone AND error_reason IS NULL) AS kept
FROM missing
"""
COMPARED = f"""
CREATE OR REPLACE VIEW listing AS FROM {{listing}};
CREATE OR REPLACE TABLE postponed AS FROM {{postponed}};
CREATE OR REPLACE TABLE runs AS FROM described;
CREATE OR REPLACE VIEW known AS
SELECT seq, {_STATE}, run.*, coalesce(retryable, false) AND image_id NOT IN (FROM postponed) AS retried, {{r}}
FROM {{c}}.live_rows JOIN runs AS run USING (run);
CREATE OR REPLACE VIEW images AS SELECT seq AS number, {_IMAGE}, {{l}} FROM listing;
CREATE OR REPLACE VIEW compared AS
SELECT number, {", ".join(f"image.{name}" for name in _IMAGE.split(", "))},
       row.seq AS row_seq, row.retryable, row.keep, row.size AS row_size, row.content_hash AS row_hash,
       row.width, row.height, row.format, row.error_reason AS row_reason, coalesce(row.own, false) AS row_own,
       {covers("row", "image", "row.retried")} AS covered,
       coalesce(row.retried, false) AND {covers("row", "image", "false")} AS failed,
       CASE WHEN number < {{relisted}} AND row.own THEN
            CASE WHEN {{relabelled}} THEN 'relabelled'
                 WHEN row.differs IS NOT NULL THEN 'other_' || row.differs END
       END AS rewritten
FROM images AS image LEFT JOIN (FROM known WHERE same_model) AS row ON row.image_id = image.image_id;
"""
TO_JUDGE = """
SELECT number, covered, keep, CASE WHEN covered THEN row_size END AS size,
       CASE WHEN covered THEN row_hash END AS content_hash, CASE WHEN covered THEN width END AS width,
       CASE WHEN covered THEN height END AS height, CASE WHEN covered THEN format END AS format,
       CASE WHEN covered THEN row_reason END AS error_reason
FROM compared WHERE number < {relisted}
"""
WAS_LEFT_OUT: Final = f"coalesce(number < {{relisted}} AND row_reason = '{FILTERED}', false)"
"""Whether an image has to be written again, without a filter."""
# The images after the filter's `outcomes`; rows that are `{stale}` are written again.
JUDGED = f"""
CREATE OR REPLACE VIEW judged AS
SELECT compared.* REPLACE (
           coalesce(content_hash, CASE WHEN condition IS NOT NULL AND covered THEN row_hash END) AS content_hash,
           coalesce(size, CASE WHEN condition IS NOT NULL AND covered THEN row_size END) AS size,
           CASE WHEN condition IS NOT NULL THEN 'filter' ELSE error_stage END AS error_stage,
           CASE WHEN condition IS NOT NULL THEN '{FILTERED}' ELSE error_reason END AS error_reason,
           coalesce(rewritten, CASE WHEN {{stale}} THEN 'other_keep' END) AS rewritten),
       condition,
       covered AND rewritten IS NULL AND NOT {{stale}} AS stays
FROM compared LEFT JOIN outcomes USING (number);
CREATE OR REPLACE TABLE undecided AS
FROM judged WHERE NOT stays OR coalesce(retryable, false) OR {{verify_hash}};
"""
# A file of the run to resume does not count if it has an image that is gone, or that has other metadata: it would bring
# that back.
RESUMED = f"""
CREATE OR REPLACE TABLE resumed_files AS
SELECT row.seq >> {FILE_BITS} AS file
FROM (SELECT seq, run, image_id, {{r}} FROM {{c}}.written WHERE run = {{resumed}}) AS row
LEFT JOIN images AS image ON image.image_id = row.image_id
GROUP BY ALL
HAVING bool_and(number IS NOT NULL AND NOT {{relabelled}});
CREATE OR REPLACE TABLE resumed AS
SELECT {_STATE}, {retried()} AND image_id NOT IN (FROM postponed) AS retried
FROM {{c}}.written JOIN resumed_files ON seq >> {FILE_BITS} = file
QUALIFY row_number() OVER (PARTITION BY image_id ORDER BY seq DESC) = 1;
INSERT INTO undecided FROM judged SEMI JOIN resumed USING (image_id) ANTI JOIN undecided USING (number);
"""
NOTHING_RESUMED = f"""
CREATE OR REPLACE TABLE resumed_files (file BIGINT);
CREATE OR REPLACE TABLE resumed AS SELECT {_STATE}, retryable AS retried FROM undecided LIMIT 0;
"""
SETTLED = f"""
CREATE OR REPLACE TABLE settled AS
SELECT image.*, coalesce(row.content_hash, image.row_hash) AS known_hash,
       CASE WHEN row.image_id IS NULL THEN stays ELSE {covers("row", "image", "row.retried")} END AS kept
FROM undecided AS image LEFT JOIN resumed AS row USING (image_id);
"""
TO_VERIFY = f"""
SELECT number, uri, known_hash FROM settled
WHERE kept AND error_reason IS NULL AND known_hash IS NOT NULL AND NOT regexp_matches(uri, '{WEB}')
"""
TODO = """
CREATE OR REPLACE TABLE todo AS FROM settled WHERE (NOT kept OR number IN (FROM altered)) AND error_reason IS NULL;
CREATE OR REPLACE TABLE copies (number BIGINT, seq BIGINT);
"""
TODO_COUNTS = """
SELECT (SELECT count(*) FROM todo) AS todo, (SELECT count(*) FROM {c}.missing WHERE NOT gone) AS stay
"""
# By the newest row of the id, or of the address of a new id, as lists have several ids for one picture.
COPIES = f"""
CREATE OR REPLACE VIEW every AS
SELECT seq, {_STATE} FROM {{c}}.written ANTI JOIN resumed_files ON file = seq >> {FILE_BITS}
WHERE run IN ({{usable}})
AND error_stage IS DISTINCT FROM '{REFUSED_STAGE}';  -- a repeated id, for example, says nothing of its address
CREATE OR REPLACE TABLE pool AS
FROM every SEMI JOIN (
    SELECT seq FROM every SEMI JOIN todo USING (image_id)
    UNION SELECT seq FROM every SEMI JOIN (SELECT DISTINCT uri FROM todo) AS todo USING (uri)
    UNION SELECT seq FROM every SEMI JOIN (SELECT DISTINCT size FROM todo) AS todo USING (size)
) AS likely USING (seq);
CREATE OR REPLACE TABLE likely AS
WITH newest AS (
    SELECT number, row.seq, true AS by_id
    FROM todo JOIN (SELECT image_id, max(seq) AS seq FROM pool GROUP BY ALL) AS row USING (image_id)
    UNION ALL
    SELECT number, row.seq, false
    FROM (FROM todo ANTI JOIN pool USING (image_id))
    JOIN (SELECT uri, max(seq) AS seq FROM pool GROUP BY ALL) AS row USING (uri)
)
SELECT number, by_id, row.* FROM newest JOIN todo USING (number) JOIN pool AS row ON row.seq = newest.seq
WHERE NOT {{verify_hash}} AND {covers("row", "todo", retried("row."))};
INSERT INTO copies
WITH embedded AS (
    SELECT content_hash, max(seq) AS seq FROM every
    WHERE {_EMBEDDED} AND content_hash IN (SELECT content_hash FROM likely WHERE error_reason = '{FILTERED}')
    GROUP BY ALL
)
-- An image that was embedded before it was left out has the vector of the same content.
SELECT number, CASE WHEN likely.error_reason = '{FILTERED}' THEN embedded.seq ELSE likely.seq END AS seq
FROM likely LEFT JOIN embedded ON embedded.content_hash = likely.content_hash
WHERE CASE WHEN likely.error_reason = '{FILTERED}' THEN embedded.seq IS NOT NULL
           ELSE by_id OR (likely.error_reason IS NULL AND likely.content_hash IS NOT NULL) END;
"""
TO_READ = f"""
SELECT number, uri FROM todo ANTI JOIN copies USING (number)
SEMI JOIN (SELECT DISTINCT size FROM pool WHERE {_EMBEDDED}) AS row USING (size)
"""
SAME_CONTENT = f"""
INSERT INTO copies
SELECT number, row.seq FROM found
JOIN (SELECT content_hash, max(seq) AS seq FROM pool WHERE {_EMBEDDED} GROUP BY ALL) AS row USING (content_hash);
"""
OUTCOMES = """
SELECT number, row.size, row.content_hash, row.width, row.height, row.format, row.error_reason
FROM (FROM copies WHERE number < {relisted}) JOIN {c}.written AS row USING (seq)
"""
DECISIONS = f"""
CREATE OR REPLACE TABLE decisions AS
WITH copied AS (
    SELECT copies.*, row.content_hash FROM copies JOIN {{c}}.written AS row USING (seq)
), moved AS (
    SELECT number, true AS moved FROM (
        SELECT number, copied.content_hash, row_number() OVER (PARTITION BY copied.content_hash ORDER BY number) AS nth
        FROM copied JOIN (FROM todo WHERE NOT row_own) AS todo USING (number)
        ANTI JOIN (FROM {{c}}.others WHERE run IN ({{own}})) AS other USING (image_id)
    ) JOIN (SELECT content_hash, count(*) AS images FROM {{c}}.missing GROUP BY content_hash) AS departed
        USING (content_hash)
    WHERE nth <= departed.images
), of_another_model AS (
    SELECT number, true AS has_other
    FROM (SELECT number, image_id FROM settled WHERE row_seq IS NULL) SEMI JOIN {{c}}.others USING (image_id)
), judged AS (
    SELECT settled.*, copied.seq, copied.content_hash AS copied_hash, moved,
           kept AND number NOT IN (FROM altered) AS is_kept,
           CASE WHEN has_other THEN 'other_model'
                WHEN row_seq IS NULL THEN 'new' WHEN failed THEN 'retried' ELSE 'changed' END AS otherwise
    FROM settled LEFT JOIN copied USING (number) LEFT JOIN moved USING (number)
    LEFT JOIN of_another_model USING (number)
)
SELECT number, seq, condition,
       CASE WHEN is_kept THEN 'keep' WHEN error_reason IS NOT NULL THEN 'refuse'
            WHEN seq IS NOT NULL THEN 'copy' ELSE 'embed' END AS action,
       CASE WHEN is_kept AND NOT stays THEN 'resumed'
            WHEN is_kept AND coalesce(retryable, false) THEN 'postponed'
            WHEN is_kept THEN 'unchanged'
            WHEN error_reason = '{FILTERED}' THEN 'filtered'
            WHEN error_reason IS NOT NULL THEN 'refused'
            WHEN moved THEN 'moved'
            WHEN otherwise = 'new' AND seq IS NOT NULL THEN 'copied'
            WHEN otherwise <> 'changed' THEN otherwise
            WHEN covered AND rewritten IS NOT NULL THEN rewritten
            WHEN seq IS NOT NULL AND copied_hash IS NOT DISTINCT FROM row_hash THEN 'touched'
            ELSE 'changed' END AS why,
       CASE WHEN is_kept AND stays THEN 'unchanged' ELSE otherwise END AS status
FROM judged;
"""
COUNTS = "SELECT action, why, status, count(*) AS images FROM decisions GROUP BY ALL"
TO_DO = """
SELECT number, decisions.seq, settled.condition, covered,
       settled.size, settled.content_hash, width, height, format
FROM decisions JOIN settled USING (number) WHERE action = '{action}'
"""
REJECTS = """
SELECT image_id, uri, error_reason, retried AS retryable
FROM (FROM known WHERE same_model AND error_reason IS NOT NULL)
SEMI JOIN images USING (image_id)
ANTI JOIN (FROM undecided WHERE rewritten IS NOT NULL) AS image USING (image_id)
"""
REPLACED = """
SELECT known.source, count(*) AS images, arg_min(image_id, seq) AS first_id, arg_min(known.uri, seq) AS first_uri
FROM known JOIN (FROM images WHERE number < {relisted}) AS image USING (image_id)
WHERE NOT own AND known.uri <> image.uri GROUP BY known.source ORDER BY known.source
"""
