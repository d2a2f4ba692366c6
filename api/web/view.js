// The size of the tiles, which this browser remembers.

import { byId } from "./elements.js";

const SIZE = "likeness-size";

/** Set up the control. */
export function watchView() {
  const size = byId("size");
  const apply = () => (byId("pictures").dataset.size = size.value);
  size.value = localStorage.getItem(SIZE) ?? "medium";
  apply();
  size.addEventListener("change", () => {
    localStorage.setItem(SIZE, size.value);
    apply();
  });
}
