// The switch between the collections of a server that has several.

import * as api from "./api.js";
import { byId, element } from "./elements.js";

/**
 * Offer the others beside the one with this name; null: one that cannot be shown. A server of one has no switch.
 * `elsewhere()` is the address of the query there, from its page.
 */
export async function offerCollections(here, elsewhere = () => "") {
  const all = (await api.collections()).filter(({ state, name }) => state !== "unavailable" || name === here);
  if (all.length < (here === null ? 1 : 2)) return;
  const options = all.map(({ name, path }) =>
    element("option", { value: api.fromRoot(path), selected: name === here }, name));
  if (here === null) options.unshift(element("option", { value: "", selected: true, disabled: true }, "Other collections"));
  const select = element("select", { ariaLabel: "Collection" }, ...options);
  select.addEventListener("change", () => location.assign(select.value + elsewhere()));
  byId("collections").replaceChildren(select);
  byId("collections").hidden = false;
  byId("collection").hidden = true;
}
