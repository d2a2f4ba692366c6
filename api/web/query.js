// What is asked, as the page's address and as the server's request. A query is a plain object:
//   kind      "text", "url", "id", "upload" or null: nothing asked yet
//   value     the text, the URL, the id, or the number of the upload in this tab
//   k         how many pictures
//   filter    conditions on columns, as the server takes them, or null
//   distinct  whether near duplicates are folded into one

export const PAGE = 24;
export const MOST = 1000; // the server's largest k
const SHARED = ["text", "url", "id"];

export const nothing = () => ({ kind: null, value: "", k: PAGE, filter: null, distinct: false });

/** The query of an address. `state` is that of the history's entry: an upload is there and not in the address. */
export function fromAddress(address, state) {
  const params = new URLSearchParams(address);
  const shared = SHARED.find((kind) => params.get(kind));
  const k = Number(params.get("k"));
  return {
    kind: shared ?? (state?.upload ? "upload" : null),
    value: shared ? params.get(shared) : (state?.upload ?? ""),
    k: Number.isInteger(k) && k > 0 ? k : PAGE,
    filter: parsed(params.get("filter")),
    distinct: params.get("distinct") === "1",
  };
}

/** The address of a query, relative to the page. */
export function toAddress({ kind, value, k, filter, distinct }) {
  const params = new URLSearchParams();
  if (SHARED.includes(kind)) params.set(kind, value);
  if (k !== PAGE) params.set("k", k);
  if (filter) params.set("filter", JSON.stringify(filter));
  if (distinct) params.set("distinct", "1");
  const search = params.toString();
  return search ? `?${search}` : "./";
}

/** The body of a search; `file` is the picture of an upload. */
export function toBody({ kind, value, k, filter, distinct }, file) {
  const options = { k, ...(filter && { filter }), ...(distinct && { distinct }) };
  if (kind !== "upload") return { [kind]: value, ...options };
  const form = new FormData();
  form.set("image", file, file.name || "picture");
  for (const [name, option] of Object.entries(options)) {
    form.set(name, typeof option === "object" ? JSON.stringify(option) : String(option));
  }
  return form;
}

/** What somebody typed or pasted: a picture's web address, or words. */
export function typed(text) {
  const value = text.trim();
  if (!value) return null;
  return { kind: /^https?:\/\/\S+$/i.test(value) ? "url" : "text", value };
}

/** A filter from the address. What is no object stays a text: the server then says what is wrong with it. */
function parsed(text) {
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
