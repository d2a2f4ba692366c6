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
