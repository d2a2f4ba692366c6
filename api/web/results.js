// The matches as a grid of links, each to a search for more like it.

import { pictureProblem, showPicture } from "./api.js";
import { showCrop, showLines } from "./crop.js";
import { element, formatCount, own, plural, screenReaderText, titleOf } from "./elements.js";
import { chips, groupLink, queryLink } from "./facets.js";
import { emptyQuery, isRanked } from "./query.js";
import { lineBoxes, marked, matchedWords, snippet } from "./words.js";

const THUMBNAIL = 384; // pixels a side; sharp on a dense display
const SMALL_SIDE = 128; // pixels a side; pictures up to this size are enlarged without smoothing
const MAX_TEXTS = 2; // with words of the search, per picture
/** By id, the part of the picture that matched in the last search; null for the whole picture. */
export const boxes = new Map();

/** The grid of a query's matches. */
export const grid = () => element("ol", { class: "grid", role: "list" });

/**
 * Tiles for the grid; `first` is the rank of the first match. Of the collection, `facets` are its values and `kinds`
 * those of its columns; `marks` adds buttons.
 */
export function tiles(matches, first, query, collection, marks) {
  if (first === 1 && query.kind !== "id") matchedWords.clear();
  return matches.map((match, number) => tile(match, first + number, query, collection, marks));
}

/** Empty tiles to show while a search runs. */
export function skeleton(count) {
  const tile = () => element("li", { class: "tile waiting" }, element("div", { class: "mat" }));
  return element("ol", { class: "grid", ariaHidden: "true" }, ...Array.from({ length: count }, tile));
}

/** A picture in its mat; if it cannot be shown, the mat says why. */
export function pictureMat(path, size, alt) {
  const img = element("img", { alt, loading: "lazy", decoding: "async" });
  const mat = element("div", { class: "mat" }, img);
  img.addEventListener("load", () => {
    img.classList.toggle("small", Math.max(img.naturalWidth, img.naturalHeight) <= SMALL_SIDE);
    mat.classList.add("loaded");
  });
  img.addEventListener("error", async () => {
    const { title, message, reason } = await pictureProblem(path, size);
    const problem = element("span", { class: "missing", title: message }, title ?? "No picture");
    if (reason) problem.append(element("small", {}, reason.replaceAll("_", " ")));
    mat.replaceChildren(problem);
  });
  showPicture(img, path, size);
  return mat;
}

function tile(match, rank, query, collection, marks) {
  const { image_id: id, picture, duplicates, box, metadata, words } = match;
  const name = titleOf(match);
  const { filter, distinct, minScore, fitting, diversity } = query; // a search by one of the matches keeps these
  const mat = pictureMat(picture, THUMBNAIL, "");
  boxes.set(id, box);
  if (query.kind !== "id") matchedWords.set(id, words);
  if (box) showCrop(mat, box);
  showLines(mat, lineBoxes(metadata, words));
  const values = chips(match, collection.facets, query);
  const shownName = marked(name, Object.values(words ?? {}).flat());
  const link = queryLink(
    { ...emptyQuery(), filter, distinct, minScore, fitting, diversity, kind: "id", value: id },
    { class: "tile-link", title: id },
    screenReaderText("More like "),
    mat,
    element("span", { class: "tile-text" },
      element("span", { class: "tile-name" }, ...shownName.flatMap(breakable)),
      ...(isRanked(query) ? scoreOf(match) : []),
      box ? screenReaderText("matched by a part of it") : null,
      ...(words ? wordsOf(match, rank, [name, ...values.map((chip) => chip.textContent)]) : []),
    ),
  );
  return element("li", { class: match.group_size > 1 ? "tile stack" : "tile" },
    link,
    query.groupBy ? groupLink(match, query, collection) : null,
    values.length ? element("div", { class: "chips" }, ...values) : null,
    duplicates.length ? duplicatesBadge(duplicates) : null,
    marks.buttons(id, name),
  );
}

function duplicatesBadge(ids) {
  const words = screenReaderText(ids.length === 1 ? " duplicate folded" : " duplicates folded");
  return element("span", { class: "folded", title: ids.join("\n") }, `+${ids.length}`, words);
}

/** Whether the words of the search are why this is a match, in which columns, and texts that the card does not show anyway. */
function wordsOf({ words, vector_rank: vectorRank, metadata, uri }, rank, shown) {
  const isWhy = vectorRank === null || vectorRank > rank;
  const names = Object.keys(words).map((column) => (column === "uri" ? "path" : column)).join(", ");
  const texts = Object.entries(words).map(([column, terms]) => {
    const value = own(metadata, column) ?? (column === "uri" ? uri : null);
    const text = Array.isArray(value) ? value.join(", ") : value;
    const isShown = shown.includes(text) || (column === "uri" && snippet(shown[0], terms));
    return typeof text === "string" && !isShown ? snippet(text, terms) : null;
  });
  if (!isWhy && !texts.some(Boolean)) return [];
  return [
    element("span", { class: "tile-why" }, `${isWhy ? "found by its words" : "words"} in ${names}`),
    ...texts.filter(Boolean).slice(0, MAX_TEXTS).map((parts) => element("span", { class: "tile-words" }, ...parts)),
  ];
}

function scoreOf({ score, percentile }) {
  if (score === null) return [];
  const number = element("span", { class: "tile-score" }, screenReaderText("score "), score.toFixed(3));
  number.title = "cosine similarity";
  if (percentile == null) return [number];
  const title = "The share of pictures that score lower with a random query of this kind";
  const texts = [`nearer than ${percentText(percentile)}`, element("span", { class: "wide" }, " of pairs")];
  return [number, element("span", { class: "tile-percentile", title }, ...texts)];
}

/** A file name that can wrap between its words. */
const breakable = (name) =>
  typeof name === "string" ? name.split(/(?<=[-_. ])/).flatMap((part) => [part, element("wbr")]) : [name];

const percentText = (percentile) => `${Math.floor(percentile * 10) / 10}%`;

/** The status line above the matches. */
export function summary({ matches, total, exact, groups, index, timing_ms: timing }) {
  if (!matches.length) return index.ntotal ? `None of the ${plural(index.ntotal, "picture")} qualifies.` : "";
  const about = exact ? "" : "about ";
  const counts = groups === null
    ? [shownOf(matches.length, total, about, "picture")]
    : [shownOf(matches.length, groups, about, "group"), `${about}${plural(total, "picture")}`];
  return `${counts.join(", ")} · ${Math.ceil(timing.total)} ms`;
}

const shownOf = (shown, all, about, noun) =>
  `${shown < all ? `${formatCount(shown)} of ` : ""}${about}${plural(all, noun)}`;
