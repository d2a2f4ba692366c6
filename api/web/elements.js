// Creates elements without innerHTML, so that metadata is never read as HTML.

/** An element with properties (`class` and `attributes` among them) and children: nodes, texts or null. */
export function element(tag, { class: classes, attributes = {}, ...properties } = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  if (classes) made.className = classes;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Text for screen readers only. */
export const screenReaderText = (text) => element("span", { class: "visually-hidden" }, text);

/** What an object has under a name that users choose, such as a column's; not what all objects inherit, as "constructor". */
export const own = (object, name) => (object && Object.hasOwn(object, name) ? object[name] : undefined);

export const byId = (id) => document.getElementById(id);

/** Replace the options of a select after its first `fixed`. The one that is chosen stays so, if it is among them. */
export function offer(select, options, fixed = 0) {
  const { value } = select;
  select.replaceChildren(...[...select.children].slice(0, fixed), ...options);
  if (options.some((option) => option.value === value)) select.value = value;
}

/** A number with separators, such as 1,980. */
export const formatCount = (number) => number.toLocaleString("en");

export const plural = (number, one, many = `${one}s`) => `${formatCount(number)} ${number === 1 ? one : many}`;

/** A text that is short enough for a heading or a link. */
export function abbreviated(text) {
  const [start] = /^.{0,120}/su.exec(text);
  return start === text ? text : `${start}…`;
}

export const isAddress = (value) => typeof value === "string" && /^https?:\/\/\S+$/i.test(value);

/** The last part of an id. */
export const fileName = (id) => id.split("/").filter(Boolean).pop() ?? id;

/** What a picture is called: its title if the source has one, otherwise the last part of its id. */
export function titleOf({ image_id: id, metadata }) {
  const named = ["title", "name"].map((name) => metadata?.[name]).find((value) => typeof value === "string" && value.trim());
  return named ?? fileName(id);
}

/** Copy a text to the clipboard, even without HTTPS. Returns whether that worked. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = element("textarea", { class: "visually-hidden", value: text });
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
