// The page of duplicates: shows the plan that `likeness duplicates` wrote, some groups at a time.

import { duplicates, index } from "./api.js";
import { byId, element, formatCount, plural } from "./elements.js";
import { pictureMat } from "./results.js";
import { bytes } from "./subject.js";

const PAGE = 20; // groups
const KINDS = {
  identical_bytes: "The same file",
  identical_pixels: "The same pixels",
  re_encoded: "Re-encoded or resized",
  cropped: "Cropped",
  similar: "Similar",
};
const nameOf = (kind) => KINDS[kind] ?? kind; // a later release may have found other kinds
const NO_PLAN = "Run “likeness duplicates” for this collection, then reload this page.";
const NEW_PLAN = "There is another plan since this page was opened, so these groups are out of date. ";
let shownPlan = null; // when the plan of the groups that are shown was made
let groupCount = 0; // of those that are shown

async function showMore() {
  const more = byId("more");
  const status = byId("more-status"); // what is above the groups is out of view here
  more.disabled = true;
  status.textContent = "";
  try {
    const { plan, serving, groups } = await duplicates(groupCount, PAGE);
    if (!groupCount) shownPlan = plan?.created_at;
    if (plan?.created_at === shownPlan) showGroups(plan, serving, groups);
    else offerNewPlan();
  } catch (error) {
    const text = error.message + (error.status === 401 ? " Enter a key on the search page first, then come back." : "");
    if (groupCount) status.textContent = text; // the groups stay
    else {
      byId("status").textContent = "";
      byId("problem").replaceChildren(notice(error.title ?? "Something went wrong", text));
    }
  }
  more.disabled = false;
}

function showGroups(plan, serving, groups) {
  byId("problem").replaceChildren();
  byId("status").textContent = plan ? summary(plan, serving) : "";
  if (!plan) byId("problem").replaceChildren(notice("No plan yet", NO_PLAN));
  const items = groups.map(groupItem);
  byId("groups").append(...items);
  if (groupCount) items[0]?.querySelector("h2").focus();
  groupCount += groups.length;
  byId("more").hidden = !plan || !groups.length || groupCount >= plan.groups;
}

/** The next groups are of another plan, whose first groups are not those that are shown. */
function offerNewPlan() {
  const again = element("button", { type: "button", class: "primary" }, "Show the new plan");
  again.addEventListener("click", async () => {
    groupCount = 0;
    byId("groups").replaceChildren();
    await showMore();
    scrollTo(0, 0);
    byId("groups").querySelector("h2")?.focus({ preventScroll: true });
  });
  byId("more-status").replaceChildren(NEW_PLAN, again);
  byId("more").hidden = true;
  again.focus();
}

const notice = (title, text) => element("div", { class: "notice" }, element("h2", {}, title), element("p", {}, text));

function summary(plan, serving) {
  const kinds = Object.entries(plan.duplicates).map(([kind, count]) => `${formatCount(count)} ${nameOf(kind).toLowerCase()}`);
  const unreadCount = Object.values(plan.unread).reduce((sum, count) => sum + count, 0);
  return [
    plan.groups ? `${plural(plan.groups, "group")}: ${kinds.join(", ")}` : "No duplicates were found.",
    new Date(plan.created_at).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" }),
    unreadCount ? `${plural(unreadCount, "picture")} could not be read` : null,
    plan.version === serving ? null : "the index has changed since: run “likeness duplicates” again",
  ].filter(Boolean).join(" · ");
}

function groupItem({ keep, duplicates: others }) {
  const best = candidate(keep, element("h2", { tabIndex: -1 }, others[0].kind === "similar" ? "Best" : "Keep"));
  best.classList.add("keep");
  const items = others.map((other) => {
    const why = other.kind === "similar" ? `score ${other.score.toFixed(3)}` : `the picture to keep: ${other.why}`;
    return element("li", {}, candidate(other, element("h3", {}, nameOf(other.kind)), element("p", { class: "hint" }, why)));
  });
  return element("li", { class: "duplicate-group" }, best, element("ul", { class: "others", role: "list" }, ...items));
}

function candidate(image, ...heading) {
  const { image_id: id, width, height, format, size, exif, modified } = image;
  const facts = [
    width && `${formatCount(width)} × ${formatCount(height)}`,
    format?.toUpperCase(),
    size !== null && bytes(size),
    exif && "EXIF",
    modified && new Date(modified).toLocaleDateString("en", { dateStyle: "medium" }),
  ];
  const mat = pictureMat(`picture?id=${encodeURIComponent(id)}`, 384, id);
  const hint = element("p", { class: "hint" }, facts.filter(Boolean).join(", "));
  return element("div", { class: "candidate" }, mat, ...heading, element("p", {}, id), hint);
}

async function showCollection() {
  const { collection } = await index();
  byId("collection").textContent = collection ?? "";
  if (collection) document.title = `Duplicates – ${collection}`;
}

byId("more").addEventListener("click", showMore);
showMore();
showCollection().catch(() => {}); // showMore reports the problem
