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
//   distinct   whether near-duplicates are folded into one match, or from which cosine
//   minScore   minimum score, or null
//   fitting    whether matches must fit the words, or from which percentile; no effect without words
//   words      "off": look for what words mean, not for the words themselves; "only": the other way round; "": both
//   diversity  how much the matches should differ, 0 to 1, or null
// An option of an address that is no such value is passed on as it is, and the server says what is wrong.

import { isAddress, own } from "./elements.js";
import { parse, stringify } from "./json.js";

export const PAGE = 24;
const ADDRESS_KINDS = ["text", "url", "id"];
const FITTING = 99.995; // as in likeness/cli/search.py
const UNLIKE = -0.3; // as there: a weight of -1 would outweigh the pictures that matches should be like

export const emptyQuery = () => ({
  kind: null, value: "", crop: null, like: [], unlike: [],
  k: PAGE, filter: null, sort: "", groupBy: "", distinct: false, minScore: null, fitting: false, words: "",
  diversity: null,
});

/** Whether anything was chosen; otherwise the page welcomes, and lists all pictures. */
export const hasQuery = (query) => Boolean(isRanked(query) || query.filter !== null || query.sort || query.groupBy);

/** Whether there is something to compare with: pictures that merely pass a filter have no scores. */
export const isRanked = ({ kind, like, unlike }) => Boolean(kind || like.length || unlike.length);

/** Whether the query is a text alone. */
const isText = ({ kind, like, unlike }) => kind === "text" && !like.length && !unlike.length;

/** Whether the query is for words, not for what they mean. */
export const isForWords = (query) => isText(query) && query.words === "only";

/** Whether the words of a text do not count, because of an option: _ONE_LIST in api/search/query.py. */
export const ignoresWords = (query) => isText(query) && query.words === "" && Boolean(
  query.sort || query.groupBy || query.distinct || query.minScore !== null || query.fitting || query.diversity);

/**
 * The query as a collection can answer it: a search for words alone compares no vectors, and a model of pictures alone
 * mixes no words with them.
 */
export function answerable(query, { embeds_texts: embedsTexts, has_words: hasWords }) {
  const { kind, words } = query;
  if (kind === "text" && !isText(query) && !embedsTexts) return { ...query, kind: null, value: "" };
  if (!isText(query) || !hasWords || (embedsTexts && words !== "only")) return query;
  return { ...query, distinct: false, minScore: null, fitting: false, diversity: null, words: "only" };
}

const text = { read: (value) => value, write: (value) => value };
const json = { read: (value) => readJson(value), write: stringify };
const flag = { read: (value) => value === "1" || readJson(value), write: (value) => (value === true ? "1" : stringify(value)) };
const numbers = {
  read: (value) => readJson(`[${value}]`, value),
  write: (values) => (Array.isArray(values) ? values.join(",") : values),
};

/** The fields of a query by their names in an address, and how they are read and written. */
const IN_ADDRESS = {
  crop: { field: "crop", ...numbers },
  k: { field: "k", ...json },
  filter: { field: "filter", ...json },
  sort: { field: "sort", ...text },
  group_by: { field: "groupBy", ...text },
  distinct: { field: "distinct", ...flag },
  min_score: { field: "minScore", ...json },
  fitting: { field: "fitting", ...flag },
  words: { field: "words", ...text },
  diversity: { field: "diversity", ...json },
};

/** The query in an address. An uploaded picture is in `state`, the history entry's, because no address can hold it. */
export function fromAddress(address, state) {
  const params = new URLSearchParams(address);
  const query = { ...emptyQuery(), like: params.getAll("like"), unlike: params.getAll("unlike") };
  const kind = ADDRESS_KINDS.find((each) => params.get(each));
  if (kind) Object.assign(query, { kind, value: params.get(kind) });
  else if (state?.upload) Object.assign(query, { kind: "upload", value: state.upload });
  for (const [name, { field, read }] of Object.entries(IN_ADDRESS)) {
    if (params.get(name)) query[field] = read(params.get(name));
  }
  return query;
}

/** The address of a query, relative to the page. */
export function toAddress(query) {
  const params = new URLSearchParams();
  if (ADDRESS_KINDS.includes(query.kind)) params.set(query.kind, query.value);
  for (const name of ["like", "unlike"]) for (const id of query[name]) params.append(name, id);
  const byDefault = emptyQuery();
  for (const [name, { field, write }] of Object.entries(IN_ADDRESS)) {
    if (query[field] !== byDefault[field]) params.set(name, write(query[field]));
  }
  const search = params.toString();
  return search ? `?${search}` : "./";
}

/** The parameters of an address that have no effect: unknown ones, and all but the first of those that are there once. */
export function ignoredIn(address) {
  const [given, kept] = [address, toAddress(fromAddress(address, null))].map((each) => new URLSearchParams(each));
  const isRead = (name) => given.getAll(name).length <= (own(IN_ADDRESS, name) ? 1 : kept.getAll(name).length);
  return [...new Set(given.keys())].filter((name) => !isRead(name));
}

/** A value from the address; `other` if it is not JSON. */
function readJson(value, other = value) {
  try {
    return parse(value);
  } catch {
    return other;
  }
}

/**
 * The body of a search request, with these `others` of its fields. `file` is the uploaded picture, and `maxK` the
 * server's largest k. What needs scores has no effect without a query.
 */
export async function toBody(query, file, maxK, others = {}) {
  const { kind, value, crop, like, unlike, k, filter, sort, groupBy, distinct, minScore, fitting, words, diversity } = query;
  const ranked = isRanked(query);
  const options = {
    k: k > maxK ? maxK : k,
    ...(filter !== null && { filter }),
    ...(sort && (ranked || sort !== "score") && { sort }),
    ...(groupBy && { group_by: groupBy }),
    ...others,
  };
  if (!ranked) return options;
  Object.assign(options, {
    ...(distinct !== false && { distinct }),
    ...(minScore !== null && { min_score: minScore }),
    ...(fitting !== false && isText(query) && { min_percentile: fitting === true ? FITTING : fitting }),
    ...(words && isText(query) && { words }),
    ...(diversity !== null && { diversity }),
  });
  const cropped = crop && { crop };
  if (!like.length && !unlike.length) {
    return kind === "upload" ? form(file, { ...cropped, ...options }) : { [kind]: value, ...cropped, ...options };
  }
  const subject = kind === "upload" ? { image: await dataUrl(file) } : { [kind]: value };
  const parts = kind ? [{ ...subject, ...cropped }] : [];
  parts.push(...like.map((id) => ({ id })), ...unlike.map((id) => ({ id, weight: UNLIKE })));
  return { queries: parts, ...options };
}

/** The query in a typed or pasted text: a picture's web address, or words. */
export function parseInput(text) {
  const value = text.trim();
  if (!value) return null;
  return { kind: isAddress(value) ? "url" : "text", value };
}

function form(file, options) {
  const made = new FormData();
  made.set("image", file, file.name || "picture");
  for (const [name, option] of Object.entries(options)) {
    made.set(name, typeof option === "object" ? stringify(option) : String(option));
  }
  return made;
}

/** A file as a `data:` URL, which the server takes like its base64. */
const dataUrl = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  Object.assign(reader, { onload: () => resolve(reader.result), onerror: () => reject(reader.error) });
  reader.readAsDataURL(file);
});
