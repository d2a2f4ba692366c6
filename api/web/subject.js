// What was asked, shown above the pictures found: the words, or the picture with what is known of it.

import { hasKey, picture, savePicture } from "./api.js";
import { chosen, queryLink, shown } from "./facets.js";
import { cropButton, showCrop } from "./crop.js";
import { copy, counted, element, fileName } from "./elements.js";
import { boxes, matted } from "./results.js";

const NOT_SHARED = "Your own picture is not part of the address. To share a search, use words, "
  + "a picture’s web address or one of the pictures found.";
const PREVIEW = 768; // pixels a side

/** The heading of a search without a picture of its own. */
export function asked(query) {
  const { kind, value } = query;
  if (kind === "url") return title(crop(query, "Like "), element("span", { class: "address" }, value));
  if (kind === "text") return title(`“${value}”`);
  if (query.like.length || query.unlike.length) return title("A mix of pictures");
  const columns = Object.keys(query.filter ?? {});
  const name = (column, value) => (typeof value === "string" ? value : `${column}: ${shown(value)}`);
  const values = columns.flatMap((column) => chosen(query.filter, column).map((value) => name(column, value)));
  return title(values.join(", ") || "Pictures that pass the filter");
}

/** A picture of the searcher's own. Only this tab has it: the address cannot bring it back. */
export function uploaded(file, query, onCrop) {
  const img = element("img", { alt: "Your picture", src: URL.createObjectURL(file) });
  const mat = element("div", { class: "mat here" }, img);
  img.addEventListener("load", () => URL.revokeObjectURL(img.src));
  img.addEventListener("error", () => mat.replaceChildren(element("span", { class: "gone" }, "Cannot be shown here")));
  const facts = [`${file.name || "Pasted picture"}, ${bytes(file.size)}`, NOT_SHARED];
  const actions = element("p", { class: "actions" }, ...cropButton(mat, onCrop));
  const texts = facts.map((fact) => element("p", { class: "hint" }, fact));
  return panel(mat, query, title(crop(query, "Like "), "your picture"), [actions, ...texts]);
}

/** A picture of the collection, with its columns. `trail` are the pictures among which it was found. */
export function details(image, query, trail, onCrop) {
  const name = fileName(image.image_id);
  const mat = matted(image.picture, PREVIEW, name);
  // The room it will take: the answer below does not jump when the picture is there.
  Object.assign(mat.querySelector("img"), { width: image.width ?? 1, height: image.height ?? 1 });
  const facts = Object.entries(known(image)).map(([term, fact]) =>
    element("div", {}, element("dt", {}, term), element("dd", {}, fact)));
  const about = element("details", { open: matchMedia("(min-width: 40rem)").matches });
  about.append(element("summary", {}, "About this picture"), element("dl", { class: "facts" }, ...facts));
  const actions = element("p", { class: "actions" }, ...files(image), ...cropButton(mat, onCrop));
  const box = !query.crop && boxes.get(query.value);
  if (box) showCrop(mat, box);
  const found = box ? element("p", { class: "hint" }, "It was found by the part in the box.") : null;
  return panel(mat, query, title(crop(query, "More like "), name), [steps(query, trail), found, actions, about]);
}

const title = (...words) => element("h2", { tabIndex: -1 }, ...words);
const crop = (query, words) => (query.crop ? `${words}a part of ` : words);

function panel(mat, query, heading, facts) {
  if (query.crop) showCrop(mat, query.crop);
  const texts = facts.filter(Boolean);
  return element("div", { class: "subject" }, mat, element("div", { class: "subject-text" }, heading, ...texts));
}

/** Links to the pictures before and after this one, where it was found. */
function steps(query, trail) {
  const here = trail.indexOf(query.value);
  if (here < 0 || trail.length < 2) return null;
  const step = (words, id) => {
    if (id === undefined) return element("span", { class: "step" }, words);
    return queryLink({ ...query, crop: null, value: id }, { class: "step", title: id }, words);
  };
  const place = element("span", { class: "hint" }, `${counted(here + 1)} of ${counted(trail.length)}`);
  const nav = element("nav", { class: "steps", ariaLabel: "Pictures found" });
  nav.append(step("Previous", trail[here - 1]), place, step("Next", trail[here + 1]));
  return nav;
}

/** The whole picture, its file, and its path. */
function files({ picture: path, image_id: id, uri }) {
  const whole = element("a", { href: picture(path), target: "_blank", rel: "noopener" }, "Whole picture");
  const file = element("a", { href: picture(path), download: fileName(id) }, "Download");
  for (const link of [whole, file]) {
    link.addEventListener("click", (event) => {
      if (!hasKey()) return;
      event.preventDefault();
      savePicture(path, fileName(id));
    });
  }
  const copied = element("button", { type: "button", class: "quiet" }, uri ? "Copy path" : "Copy id");
  copied.addEventListener("click", async () => {
    const said = copied.textContent;
    copied.textContent = (await copy(uri ?? id)) ? "Copied" : "Cannot copy here";
    setTimeout(() => (copied.textContent = said), 2000);
  });
  return [whole, file, copied];
}

function known({ image_id: id, uri, size, width, height, format, modified, metadata }) {
  const facts = { id };
  for (const [name, value] of Object.entries(metadata)) {
    if (value !== null && value !== "") facts[name] = typeof value === "object" ? JSON.stringify(value) : String(value);
  }
  if (width && height) facts.pixels = `${counted(width)} × ${counted(height)}`;
  if (format || size) facts.file = [format?.toUpperCase(), size && bytes(size)].filter(Boolean).join(", ");
  if (modified) facts.modified = new Date(modified).toLocaleDateString("en", { dateStyle: "medium" });
  if (uri) facts.source = /^https?:\/\//.test(uri) ? element("a", { href: uri, rel: "noreferrer" }, uri) : uri;
  return facts;
}

export function bytes(size) {
  if (size < 1000) return `${size} bytes`;
  return size < 1e6 ? `${Math.round(size / 1e3)} kB` : `${(size / 1e6).toFixed(1)} MB`;
}
