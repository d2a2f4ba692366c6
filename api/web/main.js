// The page: a query comes from the form, a picture or the address, its answer goes into the grid.

import * as api from "./api.js";
import { offerCollections } from "./collections.js";
import { takePictures } from "./drop.js";
import { byId, element, plural } from "./elements.js";
import { activeFilters, facetGroups, folded } from "./facets.js";
import { Filters } from "./filters.js";
import { placesMap } from "./map.js";
import { Marks, mixed } from "./mix.js";
import { fillOptions, readOptions, watchOptions } from "./options.js";
import { fail, watchKey } from "./problems.js";
import { MOST, PAGE, fromAddress, isAsked, nothing, toAddress, toBody, typed } from "./query.js";
import { grid, skeleton, summary } from "./results.js";
import { asked, details, uploaded } from "./subject.js";
import { matchFields, offerColumns, sorted, watchView } from "./view.js";
import { welcome } from "./welcome.js";

const form = byId("ask");
const what = byId("what");
const narrow = byId("narrow");
const uploads = new Map(); // by number: pictures of this tab
const marks = new Marks(({ like, unlike }) =>
  ask({ like: [...current.like, ...like], unlike: [...current.unlike, ...unlike] }));
let filters = null;
let described = null; // a promise of GET /index and GET /facets
let facets = null;
let current = nothing();
let found = null; // the last answer
let running = new AbortController();

/** Ask, and put the query into the address. `trail` are the ids among which a picture was chosen. */
function go(query, trail = []) {
  const state = { upload: query.kind === "upload" ? query.value : null, trail };
  if (toAddress(query) === toAddress(current) && state.upload === (history.state?.upload ?? null)) {
    history.replaceState({ ...state, trail: history.state?.trail ?? trail }, "");
  } else {
    history.replaceState({ ...history.state, scroll: scrollY }, "");
    history.pushState(state, "", toAddress(query));
  }
  scrollTo(0, 0);
  return show(query, { focus: true });
}

/** Show what a query finds. With `focus`, the heading gets it, unless the form has it. */
async function show(query, { focus = false, scroll = 0 } = {}) {
  running.abort();
  running = new AbortController();
  const { signal } = running;
  current = query;
  fill(query);
  try {
    const wanted = await describe();
    filters.filter = query.filter;
    countFilters(query.filter);
    showFacets(signal);
    if (isAsked(query)) await answer(query, wanted, signal, focus);
    else await welcome(byId("pictures"), wanted.dim, { facets, marks }, signal);
    if (scroll) scrollTo(0, scroll);
  } catch (error) {
    if (error.name !== "AbortError" && !signal.aborted) fail(error);
  } finally {
    if (!signal.aborted) byId("answer").ariaBusy = "false";
  }
}

/** The page as it is while the answer is on its way. */
function fill(query) {
  const busy = isAsked(query);
  found = null;
  what.value = ["text", "url"].includes(query.kind) ? query.value : "";
  fillOptions(query);
  marks.clear();
  unfold(false);
  document.body.classList.toggle("answering", busy);
  byId("welcome").hidden = busy;
  byId("tools").hidden = true;
  byId("active").hidden = true;
  byId("problem").replaceChildren();
  byId("key-form").hidden = true;
  byId("more").hidden = true;
  byId("more-status").textContent = "";
  byId("subject").replaceChildren();
  byId("answer").classList.remove("beside");
  byId("answer").ariaBusy = "true";
  byId("status").textContent = busy ? "Searching…" : "";
  byId("pictures").replaceChildren(skeleton(busy ? 12 : 8));
  entitle();
}

/** The window's title: what was asked, of which collection. */
function entitle() {
  const name = byId("collection").textContent || "Likeness";
  document.title = current.kind === "text" ? `${current.value} – ${name}` : name;
}

async function answer(query, wanted, signal, focus) {
  const file = uploads.get(query.value);
  if (query.kind === "upload" && !file) throw forgotten();
  const coming = toBody(query, file, wanted).then((body) => api.search(body, signal));
  coming.catch(() => {}); // awaited below; until then its failure is not unhandled
  const heading = await subject(query, file, signal);
  byId("subject").replaceChildren(heading);
  byId("subject").querySelector("h2").after(mixed(query) ?? "");
  byId("answer").classList.toggle("beside", heading.matches(".subject"));
  if (focus && !form.contains(document.activeElement)) {
    byId("subject").querySelector("h2").focus({ preventScroll: true });
  }
  found = await coming;
  list(query);
}

async function subject(query, file, signal) {
  const onCrop = (crop) => ask({ crop });
  if (query.kind === "upload") return uploaded(file, query, onCrop);
  if (query.kind !== "id") return asked(query);
  return details(await api.image(query.value, signal), query, history.state?.trail ?? [], onCrop);
}

function list(query) {
  const { k } = query;
  const { matches } = found;
  byId("status").textContent = summary(found);
  byId("tools").hidden = !matches.length;
  byId("map").replaceChildren(placesMap(matches, query.filter, (filter) => go({ ...query, k: PAGE, filter })) ?? "");
  byId("active").replaceChildren(...activeFilters(query));
  byId("active").hidden = !byId("active").childElementCount;
  byId("pictures").replaceChildren(matches.length ? grid(sorted(matches), query, { facets, marks }) : none(query));
  byId("more").hidden = matches.length < k || k >= MOST;
  byId("more-status").textContent = "";
}

function none({ kind, filter, fitting, minScore }) {
  const advice = [];
  if (filter) advice.push("Loosen a filter, or take one away.");
  if (fitting && kind === "text") advice.push("No picture may fit the words: try others, or show what fits them less.");
  if (minScore !== null) advice.push("Allow a lower score.");
  return element("p", { class: "nothing" }, advice.join(" ") || "The collection has nothing to compare with.");
}

const forgotten = () => new api.Problem({
  title: "The picture is no longer here",
  detail: "A picture of your own is kept only until the page is loaded again. Choose it once more.",
});

/** The address of words or a picture's URL in another collection: its ids and columns are others. */
const elsewhere = () => ["text", "url"].includes(current.kind) ? `?${new URLSearchParams({ [current.kind]: current.value })}` : "";

/** Read once what the collection holds. Returns what a search needs of that: see `toBody`. */
async function describe() {
  described ??= Promise.all([api.index(), api.facets(null)]);
  try {
    const [index, values] = await described;
    if (!filters) {
      facets = values;
      byId("collection").textContent = index.collection ?? "";
      byId("about").textContent = plural(index.ntotal, "picture");
      filters = new Filters(byId("filters"), index.columns, () => current.filter && ask({ filter: filters.filter }));
      offerColumns(index.columns);
      narrow.hidden = false;
      entitle();
      offerCollections(index.collection, elsewhere);
    }
    return { dim: index.model.dim, fields: matchFields(index.columns) };
  } catch (error) {
    described = null;
    offerCollections(null);
    throw error;
  }
}

function countFilters(filter) {
  const count = Object.keys(filter ?? {}).length;
  byId("filter-count").textContent = count ? `${count}` : "";
}

/** The values to choose from, with the counts for the current filter; nobody waits for them. */
async function showFacets(signal) {
  if (!narrow.open) return;
  const counted = current.filter ? await api.facets(current.filter, signal) : facets;
  if (!signal.aborted) byId("facets").replaceChildren(...(counted ? folded(facetGroups(counted, current)) : []));
}

/** Ask the current question, changed. */
function ask(change) {
  const narrowed = { filter: filters ? filters.filter : current.filter, ...readOptions() };
  const query = { ...current, k: PAGE, ...narrowed, ...change };
  if (isAsked(query) || isAsked(current)) go(query, history.state?.trail);
}

/** On a phone the form folds away while there is an answer. */
function unfold(open) {
  byId("ask").classList.toggle("open", open);
  byId("unfold").ariaExpanded = String(open);
}

// What was mixed with the last picture or words has nothing to do with the next.
const ANEW = { crop: null, like: [], unlike: [] };

function upload(file) {
  const number = Date.now(); // of no earlier life of this tab
  uploads.set(number, file);
  ask({ ...ANEW, kind: "upload", value: number });
}

/** The same question with a page more, in place. */
async function more() {
  const { signal } = running;
  const shown = byId("pictures").querySelectorAll(".tile-link").length;
  const wider = { ...current, k: Math.min(current.k + PAGE, MOST) };
  const status = byId("more-status"); // the one above the pictures is out of sight here
  status.textContent = "Searching…";
  try {
    found = await api.search(await toBody(wider, uploads.get(wider.value), await describe()), signal);
    current = wider;
    list(wider);
    history.replaceState(history.state, "", toAddress(current));
    byId("pictures").querySelectorAll(".tile-link")[shown]?.focus({ preventScroll: true });
  } catch (error) {
    if (signal.aborted) return;
    if (error.status === 401) {
      fail(error);
      return;
    }
    status.textContent = error.message; // what is shown stays
    status.scrollIntoView({ block: "nearest" });
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const words = typed(what.value);
  if (words) ask(words.kind === current.kind && words.value === current.value ? {} : { ...ANEW, ...words });
  else if (!["text", "url"].includes(current.kind) && (isAsked(current) || filters?.filter)) ask({});
  else what.focus();
});
byId("skip").addEventListener("click", (event) => {
  event.preventDefault(); // following the link would be another step in the history
  byId("answer").focus();
});
watchOptions(() => ask({}));
watchView(() => found && list(current));
narrow.addEventListener("toggle", () => showFacets(running.signal));
byId("unfold").addEventListener("click", () => {
  const open = !byId("ask").classList.contains("open");
  unfold(open);
  if (open) what.focus();
});
byId("more").addEventListener("click", more);
watchKey(() => show(current, { focus: true }));
/** What the address of a query cannot hold: an upload. */
const kept = ({ kind, value }) => ({ kind, value });
const shownIds = () => [...byId("pictures").querySelectorAll(".tile-link")].map((link) => link.title);

/** Go to the picture before or after this one, where it was found. */
function step(by) {
  const trail = history.state?.trail ?? [];
  const here = current.kind === "id" ? trail.indexOf(current.value) : -1;
  if (here >= 0 && trail[here + by] !== undefined) go({ ...current, crop: null, value: trail[here + by] }, trail);
}

document.addEventListener("keydown", ({ key, target }) => {
  if (!["ArrowLeft", "ArrowRight"].includes(key) || target.closest("input, select, .crop")) return;
  step(key === "ArrowLeft" ? -1 : 1);
});
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-query]");
  if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  const query = fromAddress(new URL(link.href).search, null);
  if (current.kind === "upload" && query.kind === null && !link.matches(".brand")) Object.assign(query, kept(current));
  if (link.matches(".tile-link")) go(query, shownIds());
  else go(query, query.kind === "id" ? history.state?.trail : []);
});
addEventListener("popstate", ({ state }) => {
  show(fromAddress(location.search, state), { focus: true, scroll: state?.scroll ?? 0 });
});
takePictures({
  input: byId("file"),
  veil: byId("drop"),
  onPicture: upload,
  onAddress: (url) => ask({ ...ANEW, kind: "url", value: url }),
});
history.scrollRestoration = "manual";
show(fromAddress(location.search, history.state));
