// The page: a query comes from the form, a picture or the address, its answer goes into the grid.

import * as api from "./api.js";
import { takePictures } from "./drop.js";
import { byId, element, plural } from "./elements.js";
import { Filters } from "./filters.js";
import { MOST, PAGE, fromAddress, nothing, toAddress, toBody, typed } from "./query.js";
import { grid, skeleton, summary } from "./results.js";
import { asked, details, uploaded } from "./subject.js";
import { welcome } from "./welcome.js";

const form = byId("ask");
const what = byId("what");
const distinct = byId("distinct");
const uploads = new Map(); // by number: pictures of this tab
let filters = null;
let described = null; // a promise of GET /index
let current = nothing();
let running = new AbortController();

/** Ask, and put the query into the address. */
function go(query) {
  const state = { upload: query.kind === "upload" ? query.value : null };
  if (toAddress(query) === toAddress(current) && state.upload === (history.state?.upload ?? null)) {
    history.replaceState(state, "");
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
    await describe();
    filters.filter = query.filter;
    countFilters(query.filter);
    if (query.kind) await answer(query, signal, focus);
    else await welcome(byId("pictures"), (await described).model.dim, signal);
    if (scroll) scrollTo(0, scroll);
  } catch (error) {
    if (error.name !== "AbortError" && !signal.aborted) fail(error);
  } finally {
    if (!signal.aborted) byId("answer").ariaBusy = "false";
  }
}

/** The page as it is while the answer is on its way. */
function fill(query) {
  what.value = ["text", "url"].includes(query.kind) ? query.value : "";
  distinct.checked = Boolean(query.distinct);
  byId("welcome").hidden = query.kind !== null;
  byId("problem").replaceChildren();
  byId("key-form").hidden = true;
  byId("more").hidden = true;
  byId("more-status").textContent = "";
  byId("subject").replaceChildren();
  byId("answer").classList.remove("beside");
  byId("answer").ariaBusy = "true";
  byId("status").textContent = query.kind ? "Searching…" : "";
  byId("pictures").replaceChildren(skeleton(query.kind ? 12 : 8));
  document.title = query.kind === "text" ? `${query.value} – Likeness` : "Likeness";
}

async function answer(query, signal, focus) {
  const file = uploads.get(query.value);
  if (query.kind === "upload" && !file) throw forgotten();
  const found = api.search(toBody(query, file), signal);
  found.catch(() => {}); // awaited below; until then its failure is not unhandled
  const heading = await subject(query, file, signal);
  byId("subject").replaceChildren(heading);
  byId("answer").classList.toggle("beside", heading.matches(".subject"));
  if (focus && !form.contains(document.activeElement)) {
    byId("subject").querySelector("h2").focus({ preventScroll: true });
  }
  list(await found, query);
}

async function subject(query, file, signal) {
  if (query.kind === "upload") return uploaded(file);
  return query.kind === "id" ? details(await api.image(query.value, signal)) : asked(query);
}

function list(found, { k, filter, distinct }) {
  const { matches } = found;
  byId("status").textContent = summary(found);
  byId("pictures").replaceChildren(matches.length ? grid(matches, { filter, distinct }) : none(filter));
  byId("more").hidden = matches.length < k || k >= MOST;
  byId("more-status").textContent = "";
}

function none(filter) {
  const advice = filter ? "Loosen a filter, or take one away." : "The collection has nothing to compare with.";
  return element("p", { class: "nothing" }, advice);
}

const NOT_VALID = "This key is not valid: mistyped, removed, or of another server.";

const forgotten = () => new api.Problem({
  title: "The picture is no longer here",
  detail: "A picture of your own is kept only until the page is loaded again. Choose it once more.",
});

function fail(error) {
  byId("status").textContent = "";
  byId("pictures").replaceChildren();
  byId("more").hidden = true;
  byId("more-status").textContent = "";
  if (error.status === 401) {
    askForKey(api.hasKey() ? NOT_VALID : "Whoever runs it can give you one.");
    api.dropKey();
    return;
  }
  const title = element("h2", { tabIndex: -1 }, error.title ?? "Something went wrong on this page");
  const lost = byId("answer").contains(document.activeElement) || document.activeElement === document.body;
  byId("subject").replaceChildren();
  byId("answer").classList.remove("beside");
  byId("problem").replaceChildren(element("div", { class: "notice" }, title, element("p", {}, error.message)));
  if (lost) title.focus();
}

function askForKey(why) {
  byId("key-why").textContent = why;
  byId("key-form").hidden = false;
  byId("key").focus();
}

/** Read once what the collection holds: its size, and the columns that can be filtered. */
async function describe() {
  described ??= api.index();
  try {
    const { ntotal, columns } = await described;
    byId("about").textContent = plural(ntotal, "picture");
    filters ??= new Filters(byId("filters"), columns, () => current.filter && ask({ filter: filters.filter }));
    byId("narrow").hidden = false;
  } catch (error) {
    described = null;
    throw error;
  }
}

function countFilters(filter) {
  const count = Object.keys(filter ?? {}).length;
  byId("filter-count").textContent = count ? `${count}` : "";
}

/** Ask the current question, changed. */
function ask(change) {
  const narrowed = { filter: filters ? filters.filter : current.filter, distinct: distinct.checked };
  const query = { ...current, k: PAGE, ...narrowed, ...change };
  if (query.kind) go(query);
}

function upload(file) {
  const number = Date.now(); // of no earlier life of this tab
  uploads.set(number, file);
  ask({ kind: "upload", value: number });
}

/** The same question with a page more, in place. */
async function more() {
  const { signal } = running;
  const shown = byId("pictures").querySelectorAll("a").length;
  const wider = { ...current, k: Math.min(current.k + PAGE, MOST) };
  const status = byId("more-status"); // the one above the pictures is out of sight here
  status.textContent = "Searching…";
  try {
    list(await api.search(toBody(wider, uploads.get(wider.value)), signal), wider);
    current = wider;
    history.replaceState(history.state, "", toAddress(current));
    byId("pictures").querySelectorAll("a")[shown]?.focus({ preventScroll: true });
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
  if (words || ["id", "upload"].includes(current.kind)) ask(words ?? {});
  else what.focus();
});
byId("skip").addEventListener("click", (event) => {
  event.preventDefault(); // following the link would be another step in the history
  byId("answer").focus();
});
distinct.addEventListener("change", () => ask({}));
byId("more").addEventListener("click", more);
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = byId("key").value.trim();
  byId("key").value = "";
  if (!/^[!-~]+$/.test(key)) { // no header can hold it
    askForKey(NOT_VALID);
    return;
  }
  api.setKey(key);
  show(current, { focus: true });
});
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-query]");
  if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  go(fromAddress(new URL(link.href).search, null));
});
addEventListener("popstate", ({ state }) => {
  show(fromAddress(location.search, state), { focus: true, scroll: state?.scroll ?? 0 });
});
takePictures({
  input: byId("file"),
  veil: byId("drop"),
  onPicture: upload,
  onAddress: (url) => ask({ kind: "url", value: url }),
});
history.scrollRestoration = "manual";
show(fromAddress(location.search, history.state));
