// The server's HTTP interface, as far as the page needs it.

import { parse, stringify } from "./json.js";

const KEY = "likeness-key";

/** An error to show: a problem document from the server, or that there was no answer (status 0). */
export class Problem extends Error {
  constructor({ title, detail, status = 0, reason = null, actions = [] }) {
    super(detail);
    this.title = title;
    this.actions = actions;
    this.status = status;
    this.reason = reason;
  }
}

export const hasKey = () => sessionStorage.getItem(KEY) !== null;
export const setKey = (key) => sessionStorage.setItem(KEY, key);
export const removeKey = () => sessionStorage.removeItem(KEY);

/** The result of a search; `body` is JSON or a form with a picture. */
export function search(body, signal) {
  return json("search", post(body, signal));
}

export const index = (signal) => json("index", { signal });

/** How many of the pictures that pass `filter` have each value. */
export function facets(filter, signal) {
  const query = filter === null ? "" : `?filter=${encodeURIComponent(stringify(filter))}`;
  return json(`facets${query}`, { signal });
}

/** The server's collections; none if it does not list them. */
export const collections = () => json("collections", {}).then((list) => list.collections, () => []);

/** The address of a path below the server's root, also on the page of one of several collections. */
export function fromRoot(path) {
  const root = location.pathname.replace(/(collections\/[^/]+\/)?[^/]*$/, "");
  return root + path.replace(/^\//, "");
}

/** An image's row in the index. */
export const image = (id, signal) => json(`image?id=${encodeURIComponent(id)}`, { signal });

/** A page of the plan of duplicates: `limit` groups, starting at `offset`. */
export const duplicates = (offset, limit) => json(`duplicates/plan?offset=${offset}&limit=${limit}`, {});

/** Show a picture from the server in `img`; with `size`, a thumbnail of at most that many pixels a side. */
export async function showPicture(img, path, size) {
  const address = pictureAddress(path, size);
  if (!hasKey()) {
    img.src = address;
    return;
  }
  // An img element cannot send a key.
  try {
    img.src = URL.createObjectURL(await (await request(address, {})).blob());
    img.addEventListener("load", () => URL.revokeObjectURL(img.src), { once: true });
  } catch {
    img.dispatchEvent(new Event("error"));
  }
}

/** The problem that the server reports instead of sending a picture. */
export async function pictureProblem(path, size) {
  try {
    await request(pictureAddress(path, size), {});
  } catch (error) {
    return error;
  }
  return new Problem({ detail: "The browser cannot show this picture" });
}

/** A picture's address; relative, so that the page also works below a prefix. */
export const pictureAddress = (path, size) => path.replace(/^\//, "") + (size ? `&size=${size}` : "");

/** Save the whole picture as a file. A link cannot do this if a key is needed, because it does not send the key. */
export async function savePicture(path, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await (await request(pictureAddress(path), {})).blob());
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function post(body, signal) {
  if (body instanceof FormData) return { method: "POST", body, signal };
  return { method: "POST", body: stringify(body), headers: { "Content-Type": "application/json" }, signal };
}

async function json(path, options) {
  return parse(await (await request(path, options)).text());
}

async function request(path, options) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ title: "No answer", detail: "The server cannot be reached, or closed the connection. Try again." });
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

async function problemOf(response) {
  const document = await response.json().catch(() => ({}));
  const wait = response.headers.get("Retry-After");
  const again = /^\d+$/.test(wait ?? "") ? ` Try again in ${wait} s.` : "";
  return new Problem({
    title: document.title,
    reason: document.reason,
    // The app's own documents say when to try again; Ray Serve's proxy and other proxies only send the header.
    detail: document.detail || `The server answered with status ${response.status}.${again}`,
    status: response.status,
  });
}
