// Elements without innerHTML: whatever a picture's metadata says, it stays text.

/** An element with properties (`class`, and attributes in `attributes`) and children, nodes or texts. */
export function element(tag, { class: classes, attributes = {}, ...properties } = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  if (classes) made.className = classes;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Words for those who listen to the page. */
export const unseen = (text) => element("span", { class: "unseen" }, text);

export const byId = (id) => document.getElementById(id);

/** A number as people write it: 1,980. */
export const counted = (number) => number.toLocaleString("en");

export const plural = (number, one, many = `${one}s`) => `${counted(number)} ${number === 1 ? one : many}`;

/** The last part of an id. */
export const fileName = (id) => id.split("/").filter(Boolean).pop() ?? id;

/** Put a text into the clipboard, also where the page has no secure address. Whether that worked. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = element("textarea", { class: "away", value: text });
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
