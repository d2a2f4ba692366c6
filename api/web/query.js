// Converts queries from and to the page's address, and to requests. A query is a plain object:
//   kind       "text", "url", "id", "upload" or null: the query has no subject
//   value      the text, the URL, the id, or the number of the upload in this tab
//   crop       a part of the picture: [x, y, width, height] as fractions of it, or null
//   like       ids of other pictures that matches should be like
//   unlike     ids of pictures that matches should be unlike
//   k          maximum number of matches
//   filter     conditions on columns, in the server's syntax, or null
//   sort       the column to sort by, with - before it descending; "score": the least similar first; "": the default
//   groupBy    the column whose values make groups, or ""
//   distinct   whether near-duplicates are folded into one match
//   minScore   minimum score, or null
//   fitting    whether matches must fit the words; no effect without words
//   words      "off": look for what words mean, not for the words themselves; "only": the other way round; "": both
//   diversity  how much the matches should differ, 0 to 1, or null

import { parse, stringify } from "./json.js";

export const PAGE = 24;
const CHUNK = 0x8000; // bytes; the number of arguments of a function is limited
const ADDRESS_KINDS = ["text", "url", "id"];
const FITTING = 99.995; // as in api/search/query.py
const UNLIKE = -0.3; // a weight of -1 would outweigh the pictures that matches should be like

export const emptyQuery = () => ({
  kind: null, value: "", crop: null, like: [], unlike: [],
  k: PAGE, filter: null, sort: "", groupBy: "", distinct: false, minScore: null, fitting: false, words: "",
  diversity: null,
});

/** Whether anything was chosen; otherwise the page welcomes, and lists all pictures. */
export const hasQuery = (query) => Boolean(isRanked(query) || query.filter || query.sort || query.groupBy);

/** Whether there is something to compare with: pictures that merely pass a filter have no scores. */
export const isRanked = ({ kind, like, unlike }) => Boolean(kind || like.length || unlike.length);

/** Whether the query is a text alone. */
const isText = ({ kind, like, unlike }) => kind === "text" && !like.length && !unlike.length;

/** Whether the query is for words, not for what they mean. */
export const isForWords = (query) => isText(query) && query.words === "only";

/**
 * The query as a collection can answer it: a search for words alone has neither another order nor a cut, and a model
 * of pictures alone mixes no words with them.
 */
export function answerable(query, { embeds_texts: embedsTexts, has_words: hasWords }) {
  const { kind, value, k, filter, words } = query;
  if (kind === "text" && !isText(query) && !embedsTexts) return { ...query, kind: null, value: "" };
  if (!isText(query) || !hasWords || (embedsTexts && words !== "only")) return query;
  return { ...emptyQuery(), kind, value, k, filter, words: "only" };
}

/** The query in an address. An uploaded picture is in `state`, the history entry's, because no address can hold it. */
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
    sort: params.get("sort") ?? "",
    groupBy: params.get("group_by") ?? "",
    distinct: params.get("distinct") === "1",
    minScore: number(params.get("min_score")),
    fitting: params.get("fitting") === "1",
    words: params.get("words") ?? "",
    diversity: number(params.get("diversity")),
  };
}

/** The address of a query, relative to the page. */
export function toAddress(query) {
  const { kind, value, crop, like, unlike, k, filter, sort, groupBy, distinct, minScore, fitting, words, diversity } = query;
  const params = new URLSearchParams();
  if (ADDRESS_KINDS.includes(kind)) params.set(kind, value);
  if (crop) params.set("crop", crop.join(","));
  for (const id of like) params.append("like", id);
  for (const id of unlike) params.append("unlike", id);
  if (k !== PAGE) params.set("k", k);
  if (filter) params.set("filter", stringify(filter));
  if (sort) params.set("sort", sort);
  if (groupBy) params.set("group_by", groupBy);
  if (distinct) params.set("distinct", "1");
  if (minScore !== null) params.set("min_score", minScore);
  if (fitting) params.set("fitting", "1");
  if (words) params.set("words", words);
  if (diversity !== null) params.set("diversity", diversity);
  const search = params.toString();
  return search ? `?${search}` : "./";
}

/**
 * The body of a search request, with these `others` of its fields. `file` is the uploaded picture, and `maxK` the
 * server's largest k. What needs scores has no effect without a query.
 */
export async function toBody(query, file, maxK, others = {}) {
  const { kind, value, crop, like, unlike, k, filter, sort, groupBy, distinct, minScore, fitting, words, diversity } = query;
  const ranked = isRanked(query);
  const options = {
    k: Math.min(k, maxK),
    ...(filter && { filter }),
    ...(sort && (ranked || sort !== "score") && { sort }),
    ...(groupBy && { group_by: groupBy }),
    ...others,
  };
  if (!ranked) return options;
  Object.assign(options, {
    ...(distinct && { distinct }),
    ...(minScore !== null && { min_score: minScore }),
    ...(fitting && isText(query) && { min_percentile: FITTING }),
    ...(words && isText(query) && { words }),
    ...(diversity !== null && { diversity }),
  });
  const cropped = crop && { crop };
  if (!like.length && !unlike.length) {
    return kind === "upload" ? form(file, { ...cropped, ...options }) : { [kind]: value, ...cropped, ...options };
  }
  const subject = kind === "upload" ? { image: await base64(file) } : { [kind]: value };
  const parts = kind ? [{ ...subject, ...cropped }] : [];
  parts.push(...like.map((id) => ({ id })), ...unlike.map((id) => ({ id, weight: UNLIKE })));
  return { queries: parts, ...options };
}

/** The query in a typed or pasted text: a picture's web address, or words. */
export function parseInput(text) {
  const value = text.trim();
  if (!value) return null;
  return { kind: /^https?:\/\/\S+$/i.test(value) ? "url" : "text", value };
}

function form(file, options) {
  const made = new FormData();
  made.set("image", file, file.name || "picture");
  for (const [name, option] of Object.entries(options)) {
    made.set(name, typeof option === "object" ? stringify(option) : String(option));
  }
  return made;
}

async function base64(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  const pieces = [];
  for (let at = 0; at < bytes.length; at += CHUNK) pieces.push(String.fromCharCode(...bytes.subarray(at, at + CHUNK)));
  return btoa(pieces.join(""));
}

const number = (text) => (text === null || text === "" || Number.isNaN(Number(text)) ? null : Number(text));

/** A filter from the address. If it is not JSON it stays text, and the server reports what is wrong. */
function parseFilter(text) {
  if (!text) return null;
  try {
    return parse(text);
  } catch {
    return text;
  }
}
