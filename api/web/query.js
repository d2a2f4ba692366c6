// What is asked, as the page's address and as the server's request. A query is a plain object:
//   kind       "text", "url", "id", "upload" or null: no subject
//   value      the text, the URL, the id, or the number of the upload in this tab
//   crop       a part of the picture, [x, y, width, height] as shares of it, or null
//   like       ids of further pictures to be like
//   unlike     ids of pictures to be unlike
//   k          how many pictures
//   filter     conditions on columns, as the server takes them, or null
//   distinct   whether near duplicates are folded into one
//   minScore   the lowest score, or null
//   fitting    whether only what fits the words is wanted; it is of no effect without words
//   diversity  0 to 1: how much the pictures found are to differ, or null

export const PAGE = 24;
export const MOST = 1000; // the server's largest k
const CHUNK = 0x8000; // bytes: a function takes only so many arguments
const SHARED = ["text", "url", "id"];
const FITTING = 99.995; // as in api/search/query.py
const UNLIKE = -0.3; // at full weight it would drown what the pictures are to be like

export const nothing = () => ({
  ...{ kind: null, value: "", crop: null, like: [], unlike: [] },
  ...{ k: PAGE, filter: null, distinct: false, minScore: null, fitting: false, diversity: null },
});

/** Whether there is anything to look for: else the page is at its beginning. */
export const isAsked = ({ kind, filter, like, unlike }) => Boolean(kind || filter || like.length || unlike.length);

/** Whether scores mean something: pictures that only pass a filter have none. */
export const isRanked = ({ kind, like, unlike }) => Boolean(kind || like.length || unlike.length);

/** The query of an address. `state` is that of the history's entry: an upload is there and not in the address. */
export function fromAddress(address, state) {
  const params = new URLSearchParams(address);
  const shared = SHARED.find((kind) => params.get(kind));
  const k = Number(params.get("k"));
  const crop = params.get("crop")?.split(",").map(Number);
  return {
    kind: shared ?? (state?.upload ? "upload" : null),
    value: shared ? params.get(shared) : (state?.upload ?? ""),
    crop: crop?.length === 4 ? crop : null,
    like: params.getAll("like"),
    unlike: params.getAll("unlike"),
    k: Number.isInteger(k) && k > 0 ? k : PAGE,
    filter: parsed(params.get("filter")),
    distinct: params.get("distinct") === "1",
    minScore: number(params.get("min_score")),
    fitting: params.get("fitting") === "1",
    diversity: number(params.get("diversity")),
  };
}

/** The address of a query, relative to the page. */
export function toAddress({ kind, value, crop, like, unlike, k, filter, distinct, minScore, fitting, diversity }) {
  const params = new URLSearchParams();
  if (SHARED.includes(kind)) params.set(kind, value);
  if (crop) params.set("crop", crop.join(","));
  for (const id of like) params.append("like", id);
  for (const id of unlike) params.append("unlike", id);
  if (k !== PAGE) params.set("k", k);
  if (filter) params.set("filter", JSON.stringify(filter));
  if (distinct) params.set("distinct", "1");
  if (minScore !== null) params.set("min_score", minScore);
  if (fitting) params.set("fitting", "1");
  if (diversity !== null) params.set("diversity", diversity);
  const search = params.toString();
  return search ? `?${search}` : "./";
}

/**
 * The body of a search. `file` is the picture of an upload, `dim` the length of the model's vectors, and `fields` are
 * the columns that matches come with.
 */
export async function toBody(query, file, { dim, fields }) {
  const { kind, value, crop, like, unlike, k, filter, distinct, minScore, fitting, diversity } = query;
  const options = {
    k,
    fields,
    ...(filter && { filter }),
    ...(distinct && { distinct }),
    ...(minScore !== null && { min_score: minScore }),
    ...(fitting && kind === "text" && !like.length && !unlike.length && { min_percentile: FITTING }),
    ...(diversity !== null && { diversity }),
  };
  const cropped = crop && { crop };
  if (!isRanked(query)) return { embedding: direction(dim), ...options };
  if (!like.length && !unlike.length) {
    return kind === "upload" ? form(file, { ...cropped, ...options }) : { [kind]: value, ...cropped, ...options };
  }
  const subject = kind === "upload" ? { image: await base64(file) } : { [kind]: value };
  const parts = kind ? [{ ...subject, ...cropped }] : [];
  const others = [...like.map((id) => ({ id })), ...unlike.map((id) => ({ id, weight: UNLIKE }))];
  return { queries: [...parts, ...others], ...options };
}

/** What somebody typed or pasted: a picture's web address, or words. */
export function typed(text) {
  const value = text.trim();
  if (!value) return null;
  return { kind: /^https?:\/\/\S+$/i.test(value) ? "url" : "text", value };
}

function form(file, options) {
  const made = new FormData();
  made.set("image", file, file.name || "picture");
  for (const [name, option] of Object.entries(options)) {
    made.set(name, typeof option === "object" ? JSON.stringify(option) : String(option));
  }
  return made;
}

async function base64(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  const pieces = [];
  for (let at = 0; at < bytes.length; at += CHUNK) pieces.push(String.fromCharCode(...bytes.subarray(at, at + CHUNK)));
  return btoa(pieces.join(""));
}

/** A direction that nobody chose, always the same: where nothing is asked, the order is arbitrary but stays. */
const direction = (dim) => Array.from({ length: dim }, (_, place) => Math.sin((place + 1) ** 2));

const number = (text) => (text === null || text === "" || Number.isNaN(Number(text)) ? null : Number(text));

/** A filter from the address. What is no object stays a text: the server then says what is wrong with it. */
function parsed(text) {
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
