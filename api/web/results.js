// Pictures found, as a grid of links: each leads to more like it.

import { showPicture } from "./api.js";
import { counted, element, plural, unseen } from "./elements.js";
import { nothing, toAddress } from "./query.js";

const THUMBNAIL = 384; // pixels: sharp at a tile's width on a dense display

/** The grid. `keep` are parts of the query that also hold for what is like one of these. */
export function grid(matches, keep) {
  return element("ol", { class: "grid", role: "list" }, ...matches.map((match) => tile(match, keep)));
}

/** A picture's name in few words: its label, or else the last part of its id. */
export function nameOf({ image_id: id, metadata }) {
  const label = metadata?.label ?? metadata?.title ?? metadata?.name;
  return typeof label === "string" && label ? label : fileName(id);
}

/** Tiles to look at while the answer is on its way. */
export function skeleton(count) {
  const tile = () => element("li", { class: "tile waiting" }, element("div", { class: "mat" }));
  return element("ol", { class: "grid", ariaHidden: "true" }, ...Array.from({ length: count }, tile));
}

/** A picture in its mat; where there is none, the mat says so. */
export function matted(path, size, alt) {
  const img = element("img", { alt, loading: "lazy", decoding: "async" });
  const mat = element("div", { class: "mat" }, img);
  img.addEventListener("load", () => mat.classList.add("here"));
  img.addEventListener("error", () => mat.replaceChildren(element("span", { class: "gone" }, "No picture")));
  showPicture(img, path, size);
  return mat;
}

function tile(match, keep) {
  const { image_id: id, score, picture, duplicates = [] } = match;
  const name = nameOf(match);
  const file = fileName(id);
  const link = element(
    "a",
    { class: "tile-link", href: toAddress({ ...nothing(), ...keep, kind: "id", value: id }), title: id },
    unseen("More like "),
    matted(picture, THUMBNAIL, ""),
    element("span", { class: "tile-text" },
      element("span", { class: "tile-name" }, name),
      score === undefined ? null : scoreOf(match),
      name === file ? null : element("span", { class: "tile-file" }, file),
    ),
  );
  link.dataset.query = "";
  return element("li", { class: "tile" }, link, duplicates.length ? folded(duplicates) : null);
}

function folded(ids) {
  const words = unseen(ids.length === 1 ? " duplicate folded" : " duplicates folded");
  return element("span", { class: "alike", title: ids.join("\n") }, `+${ids.length}`, words);
}

function scoreOf({ score, percentile }) {
  const judged = percentile == null ? "" : `; nearer than ${shareOf(percentile)} of pairs`;
  const title = `cosine similarity${judged}`;
  return element("span", { class: "tile-score", title }, unseen("score "), score.toFixed(3));
}

const shareOf = (percentile) => `${Math.floor(percentile * 10) / 10}%`;

const fileName = (id) => id.split("/").filter(Boolean).pop() ?? id;

/** What was found, in one line. */
export function summary({ matches, index, timing_ms: timing }) {
  if (!matches.length) return `None of the ${plural(index.ntotal, "picture")} qualifies.`;
  return `${plural(matches.length, "picture")} of ${counted(index.ntotal)} · ${Math.ceil(timing.total)} ms`;
}
