// The page: takes a query from the form, a picture or the address, and shows its matches.

import * as api from "./api.js";
import { offerCollections } from "./collections.js";
import { takePictures } from "./drop.js";
import { byId, element, plural } from "./elements.js";
import { filterable } from "./conditions.js";
import { activeFilters, countValues, facetGroups, foldLongLists, queryLink, showGroups } from "./facets.js";
import { Filters } from "./filters.js";
import { placesMap } from "./map.js";
import { Marks, mixList, mixed, saveExamples } from "./mix.js";
import { fillOptions, offerColumns, readOptions, watchOptions, watchSize } from "./options.js";
import { showBeside, showProblem, watchKey } from "./problems.js";
import { PAGE, answerable, emptyQuery, fromAddress, hasQuery, ignoredIn, ignoresWords, isForWords, parseInput, toAddress, toBody } from "./query.js";
import { grid, skeleton, summary, tiles } from "./results.js";
import { imagePanel, queryHeading, uploadPanel } from "./subject.js";
import { welcome } from "./welcome.js";

const form = byId("search-form");
const queryInput = byId("query-input");
const filterPanel = byId("filter-panel");
const uploads = new Map(); // the pictures uploaded in this tab, by number
const marks = new Marks((lists) => changeQuery(mixed(current, lists)), (lists) => saveExamples(mixed(current, lists)));
const WITHOUT_WORDS = " · by meaning alone: an order, groups or a cut leave out what only has the words";
const VERSION_GONE = 410; // the status if the index version of the pages before is gone
let filters = null;
let description = null; // a promise of the answer to GET /index, once `collection` is set; null to ask again
let collection = null; // its values, the kinds of its columns, and more of one version of its index
let current = emptyQuery();
let result = null; // the answer to the last search
let controller = new AbortController();

/** Search, and put the query into the address. `trail` lists the ids of the matches that a picture was chosen from. */
function navigate(query, trail = []) {
  const state = { upload: query.kind === "upload" ? query.value : null, trail };
  if (toAddress(query) === toAddress(current) && state.upload === (history.state?.upload ?? null)) {
    history.replaceState({ ...state, trail: history.state?.trail ?? trail }, "");
  } else {
    saveScroll();
    history.pushState(state, "", toAddress(query));
  }
  scrollTo(0, 0);
  return show(query, { focus: true });
}

/** Save how far the page is scrolled in the entry of the history, for when this is shown again. */
const saveScroll = () => history.replaceState({ ...history.state, scroll: scrollY }, "");

/** Show a query and its matches. With `focus`, focus the heading, unless the focus is on an option. */
async function show(query, { focus = false, scroll = 0 } = {}) {
  controller.abort();
  controller = new AbortController();
  const { signal } = controller;
  current = query;
  showWaiting(query);
  try {
    const index = await describe();
    if (signal.aborted) return;
    query = current = answerable(query, index);
    fillOptions(query);
    filters.filter = query.filter;
    countFilters(query.filter);
    await runQuery(query, signal, focus);
    if (scroll) scrollTo(0, scroll);
  } catch (error) {
    if (error.name !== "AbortError" && !signal.aborted) showProblem(error);
  } finally {
    if (!signal.aborted) byId("answer").ariaBusy = "false";
  }
}

/** Reset the page for a search, and show that it is running. */
function showWaiting(query) {
  const busy = hasQuery(query);
  result = null;
  queryInput.value = ["text", "url"].includes(query.kind) ? query.value : "";
  fillOptions(query);
  unfold(false);
  document.body.classList.toggle("answering", busy);
  byId("welcome").hidden = busy;
  byId("active").hidden = true;
  byId("problem").replaceChildren();
  byId("key-form").hidden = true;
  byId("more").hidden = true;
  byId("more-status").textContent = "";
  byId("subject").replaceChildren();
  byId("answer").classList.remove("beside");
  byId("answer").ariaBusy = "true";
  byId("status").textContent = busy ? "Searching…" : "";
  byId("pictures").replaceChildren(skeleton(12));
  updateTitle();
}

/** Show the query and the collection in the page's title. */
function updateTitle() {
  const name = byId("collection").textContent || "Likeness";
  document.title = current.kind === "text" ? `${current.value} – ${name}` : name;
}

async function runQuery(query, signal, focus) {
  const file = uploaded(query);
  showFacets(signal);
  const pending = toBody(query, file, collection.maxK).then((body) => api.search(body, signal));
  pending.catch(() => {}); // awaited below, but it may fail earlier
  const panel = await subjectPanel(query, file, signal);
  byId("subject").replaceChildren(panel);
  const title = byId("subject").querySelector("h2"); // not in the welcome
  title?.after(mixList(query) ?? "");
  byId("answer").classList.toggle("beside", panel !== "" && panel.matches(".subject"));
  if (focus && !document.activeElement.closest("#search-form, #tools")) title?.focus({ preventScroll: true });
  const answer = await pending;
  if (answer.index.version !== collection.version) {
    await describeAgain(signal);
    if (signal.aborted) return;
    if (!hasQuery(query)) byId("subject").replaceChildren(await subjectPanel(query, file, signal));
  }
  result = answer;
  const { matches } = result;
  byId("pictures").replaceChildren(matches.length ? grid() : nothing(query));
  byId("active").replaceChildren(...activeFilters(query));
  byId("active").hidden = !byId("active").childElementCount;
  showPage(matches);
}

async function subjectPanel(query, file, signal) {
  const onCrop = (crop) => changeQuery({ crop });
  if (!hasQuery(query)) return welcome(collection.facets) ?? "";
  if (query.kind === "upload") return uploadPanel(file, query, onCrop);
  if (query.kind !== "id") return queryHeading(query);
  return imagePanel(await api.image(query.value, signal), query, history.state?.trail ?? [], onCrop);
}

/** Add these matches to those that are shown. */
function showPage(matches) {
  const query = current;
  const ignored = ignoredIn(location.search).join(", ");
  byId("status").textContent = summary(result) + (collection.hasWords && ignoresWords(query) ? WITHOUT_WORDS : "")
    + (ignored && ` · ignored in the address: ${ignored}`);
  byId("tools").hidden = !result.matches.length;
  byId("map").replaceChildren(
    placesMap(result.matches, query.filter, (filter) => navigate({ ...query, k: PAGE, filter })) ?? "");
  byId("pictures").querySelector(".grid")?.append(...tiles(matches, result.first, query, collection, marks));
  byId("more").hidden = result.cursor === null;
  byId("more-status").textContent = "";
}

/** What to do if nothing was found. */
function nothing(query) {
  const { kind, filter, fitting, minScore } = query;
  const advice = isForWords(query) ? ["No text has these words. Try others."] : [];
  if (filter) advice.push("Loosen or remove a filter.");
  if (fitting && kind === "text") advice.push("Try other words, or turn off “Only what fits the words”.");
  if (minScore !== null) advice.push("Lower the minimum score.");
  if (!result.index.ntotal) advice.push("This collection has no pictures yet.");
  return element("p", { class: "nothing" }, advice.join(" ") || "The collection has nothing to compare with.");
}

/** Ask for words only where the model knows them or texts are searched for them; otherwise for pictures alone. */
function offerWords({ embeds_texts: embedsTexts, has_words: hasWords }) {
  byId("words-choice").hidden = !(embedsTexts && hasWords);
  document.body.classList.toggle("wordless", !embedsTexts);
  if (embedsTexts) return;
  const like = "Show a picture to find the most similar ones in this collection";
  byId("welcome-text").textContent = `${like}${hasWords ? ", or type words from its texts and file names" : ""}.`;
  if (hasWords) return;
  const words = "A picture’s web address";
  queryInput.placeholder = words;
  queryInput.labels[0].textContent = words;
}

/** The file of a query for an uploaded picture; undefined for others. */
function uploaded({ kind, value }) {
  if (kind === "upload" && !uploads.has(value)) throw lostUpload();
  return uploads.get(value);
}

function lostUpload() {
  const choose = element("button", { type: "button", class: "primary" }, "Choose it again");
  choose.addEventListener("click", () => byId("file").click());
  return new api.Problem({
    title: "The picture is no longer here",
    detail: "Your own picture is kept only until the page is reloaded.",
    actions: [choose, queryLink(emptyQuery(), { class: "start" }, "Start over")],
  });
}

/** The part of the query that makes sense in another collection too: words, or a picture's URL. */
const sharedQuery = () => ["text", "url"].includes(current.kind) ? `?${new URLSearchParams({ [current.kind]: current.value })}` : "";

/** The answer to GET /index. It is fetched once, with GET /facets, and shown. */
function describe() {
  description ??= fetchDescription().catch((error) => {
    description = null;
    if (!collection) offerCollections(null);
    throw error;
  });
  return description;
}

/** Describe the collection again: an answer came from another version of its index. */
async function describeAgain(signal) {
  description = null;
  await describe().catch(() => {}); // the next search asks again
  if (signal.aborted) return;
  fillOptions(current);
  showFacets(signal);
}

async function fetchDescription() {
  const [index, values] = await Promise.all([api.index(), api.facets(null).catch((error) => error)]);
  const hasValues = !(values instanceof Error);
  if (!hasValues) description = null; // the next search asks again
  collection = {
    version: index.version,
    facets: hasValues ? values : null,
    problem: hasValues ? null : values,
    kinds: Object.fromEntries(filterable(index.columns)),
    maxK: index.max_k,
    hasWords: index.has_words,
  };
  byId("collection").textContent = index.collection ?? "";
  byId("about").textContent = plural(index.ntotal, "picture");
  if (!filters) {
    filters = new Filters(byId("filters"), () => current.filter && changeQuery({ filter: filters.filter }));
    filterPanel.hidden = false;
    updateTitle();
    offerCollections(index.collection, sharedQuery);
  }
  filters.offer(index.columns);
  offerColumns(index.columns);
  offerWords(index);
  return index;
}

function countFilters(filter) {
  const count = Object.keys(filter ?? {}).length;
  byId("filter-count").textContent = count ? `${count}` : "";
}

/** Show the values to filter by, with their counts for the current search, or why they are missing. */
async function showFacets(signal) {
  if (!filterPanel.open || !collection) return;
  const counted = collection;
  const groups = await countedGroups(signal).catch(({ message }) =>
    [element("p", { class: "hint" }, `The values to filter by are missing: ${message}`)]);
  if (!signal.aborted && counted === collection) showGroups(byId("facets"), groups);
}

async function countedGroups(signal) {
  const { facets, problem, maxK } = collection;
  if (problem) throw problem;
  return foldLongLists(facetGroups(await countValues(current, facets, uploaded(current), maxK, signal), current));
}

/** Search with the current query, the form's options and this change. */
function changeQuery(change) {
  const { filter, sort, groupBy } = current; // until their fields are there
  const options = { ...readOptions(current), ...(filters ? { filter: filters.filter } : { filter, sort, groupBy }) };
  const query = { ...current, k: PAGE, ...options, ...change };
  if (hasQuery(query) || hasQuery(current)) navigate(query, history.state?.trail);
}

/** Show or hide the form. On a phone it is hidden while there are matches. */
function unfold(open) {
  form.classList.toggle("open", open);
  byId("unfold").ariaExpanded = String(open);
}

// A new picture or new words are not mixed with the pictures of the previous query.
const NO_MIX = { crop: null, like: [], unlike: [] };

function searchUpload(file) {
  const number = Date.now(); // also unique after a reload
  uploads.set(number, file);
  changeQuery({ ...NO_MIX, kind: "upload", value: number });
}

/** Show one more page of matches. */
async function showMore() {
  const { signal } = controller;
  const { cursor, matches } = result;
  const status = byId("more-status"); // the status above the pictures is out of view here
  status.textContent = "Searching…";
  try {
    const body = await toBody({ ...current, k: PAGE }, uploaded(current), collection.maxK, { cursor });
    const page = await api.search(body, signal);
    if (result?.cursor !== cursor) return; // two clicks, one page
    result = { ...page, matches: [...matches, ...page.matches] };
    current = { ...current, k: result.matches.length };
    showPage(page.matches);
    history.replaceState(history.state, "", toAddress(current));
    byId("pictures").querySelectorAll(".tile-link")[matches.length]?.focus({ preventScroll: true });
  } catch (error) {
    if (signal.aborted) return;
    if (error.status === VERSION_GONE) {
      const again = element("button", { type: "button", class: "primary" }, "Search again");
      again.addEventListener("click", () => navigate(current, history.state?.trail));
      status.replaceChildren("The collection has changed since this search, so it has no more pages. ", again);
      byId("more").hidden = true;
      again.focus();
      return;
    }
    showBeside(error, status);
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const input = parseInput(queryInput.value);
  if (input) changeQuery(input.kind === current.kind && input.value === current.value ? {} : { ...NO_MIX, ...input });
  else if (!["text", "url"].includes(current.kind) && (hasQuery(current) || filters?.filter)) changeQuery({});
  else queryInput.focus();
});
byId("skip").addEventListener("click", (event) => {
  event.preventDefault(); // following the link would add an entry to the history
  byId("answer").focus();
});
watchOptions(() => changeQuery({}));
watchSize();
filterPanel.addEventListener("toggle", () => showFacets(controller.signal));
byId("unfold").addEventListener("click", () => {
  const open = !form.classList.contains("open");
  unfold(open);
  if (open) queryInput.focus();
});
byId("more").addEventListener("click", showMore);
watchKey(() => show(current, { focus: true }));

const visibleIds = () => [...byId("pictures").querySelectorAll(".tile-link")].map((link) => link.title);

/** Go to the match that is `distance` places after this one in the results. */
function step(distance) {
  const trail = history.state?.trail ?? [];
  const position = current.kind === "id" ? trail.indexOf(current.value) : -1;
  const id = trail[position + distance];
  if (position >= 0 && id !== undefined) navigate({ ...current, crop: null, value: id }, trail);
}

document.addEventListener("keydown", ({ key, target, altKey, ctrlKey, metaKey, shiftKey }) => {
  if (altKey || ctrlKey || metaKey || shiftKey) return; // the browser's own keys: Alt+ArrowLeft goes back
  if (!["ArrowLeft", "ArrowRight"].includes(key) || target.closest("input, select, .crop")) return;
  step(key === "ArrowLeft" ? -1 : 1);
});
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-query]");
  if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  const query = fromAddress(new URL(link.href).search, null);
  if (current.kind === "upload" && query.kind === null && !link.matches(".brand, .start")) {
    Object.assign(query, { kind: "upload", value: current.value }); // an upload is not part of the link's address
  }
  if (link.matches(".tile-link")) navigate(query, visibleIds());
  else navigate(query, query.kind === "id" ? history.state?.trail : []);
});
addEventListener("popstate", ({ state }) => {
  show(fromAddress(location.search, state), { focus: true, scroll: state?.scroll ?? 0 });
});
takePictures({
  input: byId("file"),
  overlay: byId("drop"),
  onPicture: searchUpload,
  onAddress: (url) => changeQuery({ ...NO_MIX, kind: "url", value: url }),
});
addEventListener("pagehide", () => {
  if (byId("answer").ariaBusy !== "true") saveScroll();
});
history.scrollRestoration = "manual"; // the browser's own comes before the pictures
show(fromAddress(location.search, history.state), { scroll: history.state?.scroll });
