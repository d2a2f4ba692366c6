// Pictures found, as a grid of links: each leads to more like it.

import { showPicture, whyNone } from "./api.js";
import { showCrop } from "./crop.js";
import { counted, element, fileName, plural, unseen } from "./elements.js";
import { chips, queryLink } from "./facets.js";
import { isRanked, nothing } from "./query.js";

const THUMBNAIL = 384; // pixels: sharp at a tile's width on a dense display
/** Of pictures that were found by a part of them, that part, by id: as they were found last. */
export const boxes = new Map();
const SMALL = 128; // pixels a side: what has no more is enlarged with its pixels as they are

/** The grid for a query. `facets` are those of the collection, or null; `marks` those of pictures, or null. */
export function grid(matches, query, { facets = null, marks = null } = {}) {
  return element("ol", { class: "grid", role: "list" }, ...matches.map((match) => tile(match, query, facets, marks)));
}

/** Tiles to look at while the answer is on its way. */
export function skeleton(count) {
  const tile = () => element("li", { class: "tile waiting" }, element("div", { class: "mat" }));
  return element("ol", { class: "grid", ariaHidden: "true" }, ...Array.from({ length: count }, tile));
}

/** A picture in its mat; where there is none, the mat says why. */
export function matted(path, size, alt) {
  const img = element("img", { alt, loading: "lazy", decoding: "async" });
  const mat = element("div", { class: "mat" }, img);
  img.addEventListener("load", () => {
    img.classList.toggle("small", Math.max(img.naturalWidth, img.naturalHeight) <= SMALL);
    mat.classList.add("here");
  });
  img.addEventListener("error", async () => {
    const { title, message, reason } = await whyNone(path, size);
    const said = element("span", { class: "gone", title: message }, title ?? "No picture");
    if (reason) said.append(element("small", {}, reason.replaceAll("_", " ")));
    mat.replaceChildren(said);
  });
  showPicture(img, path, size);
  return mat;
}

function tile(match, query, facets, marks) {
  const { image_id: id, picture, duplicates = [], metadata, box } = match;
  const name = fileName(id);
  const { filter, distinct, minScore, fitting, diversity } = query; // these also hold for what is like one of the pictures
  const mat = matted(picture, THUMBNAIL, "");
  boxes.set(id, box);
  if (box) showCrop(mat, box);
  const link = queryLink(
    { ...nothing(), filter, distinct, minScore, fitting, diversity, kind: "id", value: id },
    { class: "tile-link", title: id },
    unseen("More like "),
    mat,
    element("span", { class: "tile-text" },
      element("span", { class: "tile-name" }, ...breakable(name)),
      ...(isRanked(query) ? scoreOf(match) : []),
      box ? unseen("found by a part of it") : null,
    ),
  );
  const values = chips(metadata, facets, query);
  return element("li", { class: "tile" },
    link,
    values.length ? element("div", { class: "chips" }, ...values) : null,
    duplicates.length ? folded(duplicates) : null,
    marks?.buttons(id, name),
  );
}

function folded(ids) {
  const words = unseen(ids.length === 1 ? " duplicate folded" : " duplicates folded");
  return element("span", { class: "alike", title: ids.join("\n") }, `+${ids.length}`, words);
}

function scoreOf({ score, percentile }) {
  const number = element("span", { class: "tile-score" }, unseen("score "), score.toFixed(3));
  number.title = "cosine similarity";
  if (percentile == null) return [number];
  const title = "Of random pairs of pictures of this collection, so many are less alike";
  const said = [`nearer than ${shareOf(percentile)}`, element("span", { class: "wide" }, " of pairs")];
  return [number, element("span", { class: "tile-why", title }, ...said)];
}

/** A file's name that wraps where its words end. */
const breakable = (name) => name.split(/(?<=[-_. ])/).flatMap((part) => [part, element("wbr")]);

const shareOf = (percentile) => `${Math.floor(percentile * 10) / 10}%`;

/** What was found, in one line. */
export function summary({ matches, index, timing_ms: timing }) {
  if (!matches.length) return `None of the ${plural(index.ntotal, "picture")} qualifies.`;
  return `${plural(matches.length, "picture")} of ${counted(index.ntotal)} · ${Math.ceil(timing.total)} ms`;
}
