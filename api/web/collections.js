// Switches between the collections of a server that has several.

import * as api from "./api.js";
import { byId, element } from "./elements.js";

/**
 * Offer the server's other collections, if there are any. `current` is null if the page's own cannot be opened.
 * `queryString()` returns the query to open the other page with.
 */
export async function offerCollections(current, queryString = () => "") {
  const all = (await api.collections()).filter(({ state, name }) => state !== "unavailable" || name === current);
  if (all.length < (current === null ? 1 : 2)) return;
  const options = all.map(({ name, path }) =>
    element("option", { value: api.fromRoot(path), selected: name === current }, name));
  if (current === null) options.unshift(element("option", { value: "", selected: true, disabled: true }, "Other collections"));
  const select = element("select", { ariaLabel: "Collection" }, ...options);
  const own = select.value;
  select.addEventListener("change", () => location.assign(select.value + queryString()));
  addEventListener("pageshow", () => (select.value = own)); // going back may show the page as it was left
  byId("collections").replaceChildren(select);
  byId("collections").hidden = false;
  byId("collection").hidden = true;
}
