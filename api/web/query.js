// Converts a query from and to the page's address, and to a request. A query is a plain object:
//   kind       "text", "url", "id", "upload" or null: the query has no subject
//   value      the text, the URL, the id, or the number of the upload in this tab
//   crop       a part of the picture, [x, y, width, height] as fractions of it, or null
//   like       ids of further pictures to be like
//   unlike     ids of pictures to be unlike
//   k          how many pictures
//   filter     conditions on columns, as the server takes them, or null
//   distinct   whether near duplicates are folded into one
//   minScore   minimum score, or null
//   fitting    whether matches must fit the words; without words it has no effect
//   diversity  how much the matches should differ, 0 to 1, or null

export const PAGE = 24;
export const MAX_K = 1000; // the server's largest k
const CHUNK = 0x8000; // bytes: a function takes only so many arguments
const ADDRESS_KINDS = ["text", "url", "id"];
const FITTING = 99.995; // as in api/search/query.py
const UNLIKE = -0.3; // at full weight it would outweigh what the pictures should be like

export const emptyQuery = () => ({
  ...{ kind: null, value: "", crop: null, like: [], unlike: [] },
  ...{ k: PAGE, filter: null, distinct: false, minScore: null, fitting: false, diversity: null },
});

/** Whether there is anything to search for; otherwise the page shows its start. */
export const hasQuery = ({ kind, filter, like, unlike }) => Boolean(kind || filter || like.length || unlike.length);

/** Whether scores mean something: pictures that only pass a filter have none. */
export const isRanked = ({ kind, like, unlike }) => Boolean(kind || like.length || unlike.length);

/** The query of an address. `state` is that of the history's entry, which has the upload that no address can have. */
export function fromAddress(address, state) {
  const params = new URLSearchParams(address);
  const kindInAddress = ADDRESS_KINDS.find((kind) => params.get(kind));
  const k = Number(params.get("k"));
  const crop = params.get("crop")?.split(",").map(Number);
  return {
    kind: kindInAddress ?? (state?.upload ? "upload" : null),
    value: kindInAddress ? params.get(kindInAddress) : (state?.upload ?? ""),
    crop: crop?.length === 4 ? crop : null,
    like: params.getAll("like"),
    unlike: params.getAll("unlike"),
    k: Number.isInteger(k) && k > 0 ? k : PAGE,
    filter: parseFilter(params.get("filter")),
    distinct: params.get("distinct") === "1",
    minScore: number(params.get("min_score")),
    fitting: params.get("fitting") === "1",
    diversity: number(params.get("diversity")),
  };
}

/** The address of a query, relative to the page. */
export function toAddress({ kind, value, crop, like, unlike, k, filter, distinct, minScore, fitting, diversity }) {
  const params = new URLSearchParams();
  if (ADDRESS_KINDS.includes(kind)) params.set(kind, value);
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
  if (!isRanked(query)) return { embedding: fixedDirection(dim), ...options };
  if (!like.length && !unlike.length) {
    return kind === "upload" ? form(file, { ...cropped, ...options }) : { [kind]: value, ...cropped, ...options };
  }
  const subject = kind === "upload" ? { image: await base64(file) } : { [kind]: value };
  const parts = kind ? [{ ...subject, ...cropped }] : [];
  const others = [...like.map((id) => ({ id })), ...unlike.map((id) => ({ id, weight: UNLIKE }))];
  return { queries: [...parts, ...others], ...options };
}

/** The query in a text that was typed or pasted: a picture's web address, or words. */
export function parseInput(text) {
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

/** An arbitrary vector, always the same, so that the order of pictures that only pass a filter does not change. */
const fixedDirection = (dim) => Array.from({ length: dim }, (_, place) => Math.sin((place + 1) ** 2));

const number = (text) => (text === null || text === "" || Number.isNaN(Number(text)) ? null : Number(text));

/** A filter from the address. What is not JSON stays text: the server reports what is wrong with it. */
function parseFilter(text) {
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
