// Shows the query above or beside the matches: the words, or the picture with its columns.

import { hasKey, pictureAddress, savePicture } from "./api.js";
import { cropButtons, showCrop, showLines } from "./crop.js";
import { abbreviated, copy, element, fileName, formatCount, isAddress, own, titleOf } from "./elements.js";
import { allowedValues, namedValue, queryLink } from "./facets.js";
import { stringify } from "./json.js";
import { showBeside } from "./problems.js";
import { boxes, pictureMat } from "./results.js";
import { lineBoxes, marked, matchedWords } from "./words.js";

const NOT_SHARED = "Your own picture is not part of the address, so this search cannot be shared.";
const ENDING = /\.(jpe?g|jfif|png|webp|gif|bmp|tiff?|avif|mpo|hei[cf]|hif|jxl)$/i; // of pictures
const PREVIEW = 768; // pixels a side

/** The heading of a query that is not shown as a picture. */
export function queryHeading(query) {
  const { kind, value } = query;
  if (kind === "url") return title(withCrop(query, "Like "), element("span", { class: "address" }, value));
  if (kind === "text") return title(`“${value}”`);
  if (query.like.length || query.unlike.length) return title("A mix of pictures");
  const columns = Object.keys(query.filter ?? {});
  const values = columns.flatMap((column) => allowedValues(query.filter, column).map((value) => namedValue(column, value)));
  return title(abbreviated(values.join(", ")) || (query.filter ? "Pictures that pass the filter" : "All pictures"));
}

/** An uploaded picture. It exists only in this tab, so it is not part of the address. */
export function uploadPanel(file, query, onCrop) {
  const img = element("img", { alt: "Your picture", src: URL.createObjectURL(file) });
  const mat = element("div", { class: "mat loaded" }, img);
  img.addEventListener("load", () => URL.revokeObjectURL(img.src));
  img.addEventListener("error", () => mat.replaceChildren(element("span", { class: "missing" }, "The browser cannot show this picture")));
  const facts = [`${file.name || "Pasted picture"}, ${bytes(file.size)}`, NOT_SHARED];
  const actions = element("p", { class: "actions" }, ...cropButtons(mat, onCrop));
  const texts = facts.map((fact) => element("p", { class: "hint" }, fact));
  return panel(mat, query, title(withCrop(query, "Like "), "your picture"), [actions, ...texts]);
}

/** A picture of the collection, with its columns. `trail` lists the ids of the matches from which it was chosen. */
export function imagePanel(image, query, trail, onCrop) {
  const name = titleOf(image);
  const mat = pictureMat(image.picture, PREVIEW, name);
  // Reserve its space, so that the matches below do not jump when the picture has loaded.
  Object.assign(mat.querySelector("img"), { width: image.width ?? 1, height: image.height ?? 1 });
  const words = matchedWords.get(query.value);
  const lines = query.crop ? [] : lineBoxes(image.metadata, words);
  showLines(mat, lines);
  const facts = imageFacts(image, words).map(([term, fact]) =>
    element("div", {}, element("dt", {}, term), element("dd", {}, fact)));
  const about = element("details", { open: matchMedia("(min-width: 40rem)").matches });
  about.append(element("summary", {}, "About this picture"), element("dl", { class: "facts" }, ...facts));
  const status = element("span", { class: "hint", attributes: { "aria-live": "polite" } });
  const actions = element("p", { class: "actions" }, ...files(image, status), ...cropButtons(mat, onCrop), status);
  const box = !query.crop && boxes.get(query.value);
  if (box) showCrop(mat, box);
  const text = box ? "The part in the box matched." : lines.length && "The lines in boxes have words of the search.";
  const note = text ? element("p", { class: "hint" }, text) : null;
  return panel(mat, query, title(withCrop(query, "More like "), name), [steps(query, trail), note, actions, about]);
}

const title = (...words) => element("h2", { tabIndex: -1 }, ...words);
const withCrop = (query, words) => (query.crop ? `${words}a part of ` : words);

function panel(mat, query, heading, facts) {
  if (query.crop) showCrop(mat, query.crop);
  const texts = facts.filter(Boolean);
  return element("div", { class: "subject" }, mat, element("div", { class: "subject-text" }, heading, ...texts));
}

/** Links to the matches before and after this one. */
function steps(query, trail) {
  const position = trail.indexOf(query.value);
  if (position < 0 || trail.length < 2) return null;
  const step = (words, id) => {
    if (id === undefined) return element("span", { class: "step" }, words);
    return queryLink({ ...query, crop: null, value: id }, { class: "step", title: id }, words);
  };
  const count = element("span", { class: "hint" }, `${formatCount(position + 1)} of ${formatCount(trail.length)}`);
  const nav = element("nav", { class: "steps", ariaLabel: "Search results" });
  nav.append(step("Previous", trail[position - 1]), count, step("Next", trail[position + 1]));
  return nav;
}

/** Links to the whole picture and its download, and a button that copies its path. `status` says what went wrong. */
function files({ picture: path, image_id: id, uri, format }, status) {
  const name = downloadName(id, format);
  const whole = element("a", { href: pictureAddress(path), target: "_blank", rel: "noopener" }, "Whole picture");
  const file = element("a", { href: pictureAddress(path), download: name }, "Download");
  for (const link of [whole, file]) {
    link.addEventListener("click", (event) => {
      if (!hasKey()) return;
      event.preventDefault();
      status.textContent = "";
      savePicture(path, name).catch((error) => showBeside(error, status));
    });
  }
  const copyButton = element("button", { type: "button", class: "quiet" }, uri ? "Copy path" : "Copy id");
  copyButton.addEventListener("click", async () => {
    const label = copyButton.textContent;
    copyButton.textContent = (await copy(uri ?? id)) ? "Copied" : "Cannot copy here";
    setTimeout(() => (copyButton.textContent = label), 2000);
  });
  return [whole, file, copyButton];
}

/** The name of a picture's file; a frame of a video, or a row of a table, gets an ending that opens it as a picture. */
function downloadName(id, format) {
  const name = fileName(id);
  if (!format || format === "raw" || ENDING.test(name)) return name;
  return `${name}.${format === "jpeg" ? "jpg" : format}`;
}

/** What is known of a picture, as [term, fact]. A column of the source may have the name of another fact. */
function imageFacts({ image_id: id, uri, size, width, height, format, modified, metadata }, words) {
  const isOfLines = (name) => name.endsWith("_boxes") && Object.hasOwn(metadata, name.slice(0, -"_boxes".length)); // drawn, not written
  const columns = Object.entries(metadata).filter(([name, value]) => value !== null && value !== "" && !isOfLines(name));
  return [
    ["id", id],
    ...columns.map(([name, value]) => [name, fact(value, own(words, name))]),
    ["pixels", width && height ? `${formatCount(width)} × ${formatCount(height)}` : null],
    ["file", [format?.toUpperCase(), size && bytes(size)].filter(Boolean).join(", ")],
    ["modified", modified && new Date(modified).toLocaleDateString("en", { dateStyle: "medium" })],
    ["source", uri && fact(uri, own(words, "uri"))],
  ].filter(([, known]) => known);
}

/** A value in full: web addresses as links, a list without brackets, with each address on a line of its own. */
function fact(value, terms) {
  if (isAddress(value)) return element("a", { href: value, rel: "noreferrer" }, value);
  if (typeof value === "string") return element("span", {}, ...marked(value, terms));
  const isSimple = (each) => each === null || typeof each !== "object";
  if (!Array.isArray(value) || !value.every(isSimple)) return isSimple(value) ? String(value) : stringify(value);
  if (!value.some(isAddress)) return element("span", {}, ...marked(value.join(", "), terms));
  return element("ul", { role: "list" }, ...value.map((each) => element("li", {}, fact(each))));
}

export function bytes(size) {
  if (size < 1000) return `${size} bytes`;
  return size < 1e6 ? `${Math.round(size / 1e3)} kB` : `${(size / 1e6).toFixed(1)} MB`;
}
