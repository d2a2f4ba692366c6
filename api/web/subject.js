// What was asked, shown above the pictures found: the words, or the picture with what is known of it.

import { hasKey, picture, savePicture } from "./api.js";
import { counted, element } from "./elements.js";
import { matted, nameOf } from "./results.js";

const NOT_SHARED = "Your own picture is not part of the address. To share a search, use words, "
  + "a picture’s web address or one of the pictures found.";
const PREVIEW = 768; // pixels a side

/** The heading of a search by words or by a web address. */
export function asked({ kind, value }) {
  const words = kind === "text" ? [`“${value}”`] : ["Like ", element("span", { class: "address" }, value)];
  return element("h2", { tabIndex: -1 }, ...words);
}

/** A picture of the searcher's own. Only this tab has it: the address cannot bring it back. */
export function uploaded(file) {
  const img = element("img", { alt: "Your picture", src: URL.createObjectURL(file) });
  const mat = element("div", { class: "mat here" }, img);
  img.addEventListener("load", () => URL.revokeObjectURL(img.src));
  img.addEventListener("error", () => mat.replaceChildren(element("span", { class: "gone" }, "Cannot be shown here")));
  const facts = [`${file.name || "Pasted picture"}, ${bytes(file.size)}`, NOT_SHARED];
  return panel(mat, "Like your picture", facts.map((fact) => element("p", { class: "hint" }, fact)));
}

/** A picture of the collection, with its columns. */
export function details(image) {
  const name = nameOf(image);
  const mat = matted(image.picture, PREVIEW, name);
  // The room it will take: the answer below does not jump when the picture is there.
  Object.assign(mat.querySelector("img"), { width: image.width ?? 1, height: image.height ?? 1 });
  const facts = Object.entries(known(image)).map(([term, fact]) =>
    element("div", {}, element("dt", {}, term), element("dd", {}, fact)));
  const about = element("details", { open: matchMedia("(min-width: 40rem)").matches });
  about.append(element("summary", {}, "About this picture"), element("dl", { class: "facts" }, ...facts));
  return panel(mat, `More like ${name}`, [whole(image), about]);
}

function panel(mat, title, facts) {
  const heading = element("h2", { tabIndex: -1 }, title);
  return element("div", { class: "subject" }, mat, element("div", { class: "subject-text" }, heading, ...facts));
}

/** The link to the whole picture. */
function whole({ picture: path, image_id: id }) {
  const link = element("a", { href: picture(path), target: "_blank", rel: "noopener" }, "Whole picture");
  link.addEventListener("click", (event) => {
    if (!hasKey()) return;
    event.preventDefault();
    savePicture(path, id.split("/").pop());
  });
  return element("p", {}, link);
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

function bytes(size) {
  if (size < 1000) return `${size} bytes`;
  return size < 1e6 ? `${Math.round(size / 1e3)} kB` : `${(size / 1e6).toFixed(1)} MB`;
}
