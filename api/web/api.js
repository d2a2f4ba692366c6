// The server's HTTP interface, as far as the page needs it.

const KEY = "likeness-key";

/** An error that can be shown: a problem document of the server, or no answer at all (status 0). */
export class Problem extends Error {
  constructor({ title, detail, status = 0, reason = null }) {
    super(detail);
    this.title = title;
    this.status = status;
    this.reason = reason;
  }
}

export const hasKey = () => sessionStorage.getItem(KEY) !== null;
export const setKey = (key) => sessionStorage.setItem(KEY, key);
export const dropKey = () => sessionStorage.removeItem(KEY);

/** The answer to `body`, a search as JSON or as a form with a picture. */
export function search(body, signal) {
  return json("search", post(body, signal));
}

export const index = (signal) => json("index", { signal });

/** How many pictures that pass `filter` have each value; null where that cannot be told. */
export async function facets(filter, signal) {
  const query = filter ? `?filter=${encodeURIComponent(JSON.stringify(filter))}` : "";
  return json(`facets${query}`, { signal }).catch(() => null);
}

/** The collections of this server, where it tells them. */
export const collections = () => json("collections", {}).then((found) => found.collections, () => []);

/** An address that the server gives relative to its root, whichever of its collections this page is of. */
export function fromRoot(path) {
  const root = location.pathname.replace(/(collections\/[^/]+\/)?[^/]*$/, "");
  return root + path.replace(/^\//, "");
}

/** What the index knows of an image. */
export const image = (id, signal) => json(`image?id=${encodeURIComponent(id)}`, { signal });

/** Some groups of the plan of duplicates. */
export const duplicates = (offset, limit) => json(`duplicates/plan?offset=${offset}&limit=${limit}`, {});

/** Pictures of the collection to begin with: those nearest to a direction that nobody chose. */
export async function examples(dim, count) {
  const embedding = Array.from({ length: dim }, () => Math.random() - 0.5);
  return (await search({ embedding, k: count, distinct: 0.9 })).matches;
}

/** Let `img` show a picture of the server's; with `size`, a thumbnail of at most that many pixels a side. */
export async function showPicture(img, path, size) {
  const address = picture(path) + (size ? `&size=${size}` : "");
  if (!hasKey()) {
    img.src = address;
    return;
  }
  // An img element cannot send a key.
  try {
    img.src = URL.createObjectURL(await (await answer(address, {})).blob());
    img.addEventListener("load", () => URL.revokeObjectURL(img.src), { once: true });
  } catch {
    img.dispatchEvent(new Event("error"));
  }
}

/** Why there is no picture: the problem that the server answers with instead. */
export async function whyNone(path, size) {
  try {
    await answer(picture(path) + (size ? `&size=${size}` : ""), {});
  } catch (error) {
    return error;
  }
  return new Problem({ detail: "It cannot be shown here" });
}

/** A picture's address; relative, so that the page also works below a prefix. */
export const picture = (path) => path.replace(/^\//, "");

/** Save the whole picture: what a link cannot do where a key is asked for. */
export async function savePicture(path, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await (await answer(picture(path), {})).blob());
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function post(body, signal) {
  if (body instanceof FormData) return { method: "POST", body, signal };
  return { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" }, signal };
}

async function json(path, options) {
  return (await answer(path, options)).json();
}

async function answer(path, options) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ title: "No answer", detail: "The server cannot be reached, or hung up. Try again." });
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
    // The app's own documents say when to try again; Ray Serve's proxy and other proxies have the header alone.
    detail: document.detail || `The server answered with status ${response.status}.${again}`,
    status: response.status,
  });
}
