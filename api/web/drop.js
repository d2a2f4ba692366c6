// Takes pictures that the user chooses, drops or pastes.

import { isAddress } from "./elements.js";

/**
 * Call `onPicture` with each picture that is chosen in `input`, dropped on the page or pasted, and `onAddress` with each
 * web address that is dropped or pasted. `overlay` is shown while something is dragged over the page.
 */
export function takePictures({ input, overlay, onPicture, onAddress }) {
  input.addEventListener("change", () => {
    const [file] = input.files;
    input.value = ""; // otherwise choosing the same file again would cause no event
    if (file) onPicture(file);
  });
  document.addEventListener("paste", (event) => {
    const data = event.clipboardData;
    if (isForText(event.target) && data.getData("text/plain")) return; // office programs add a picture of the text
    if (take(data, onPicture, onAddress)) event.preventDefault();
  });
  watchDrags(overlay, (data) => take(data, onPicture, onAddress));
}

/** Pass on the picture or web address in `data`. Returns whether there was one. */
function take(data, onPicture, onAddress) {
  const [file] = data.files;
  if (file) {
    onPicture(file);
    return true;
  }
  const lines = (data.getData("text/uri-list") || data.getData("text/plain")).split("\n");
  const address = lines.map((line) => line.trim()).find(isAddress);
  if (!address) return false;
  onAddress(address);
  return true;
}

function watchDrags(overlay, onDrop) {
  let isOwnPicture = false; // the page's own pictures can be dragged elsewhere, but not dropped here
  let depth = 0;
  const droppable = ({ dataTransfer }) =>
    !isOwnPicture && ["Files", "text/uri-list"].some((type) => dataTransfer.types.includes(type));
  const updateOverlay = (change) => {
    depth = Math.max(0, depth + change);
    overlay.classList.toggle("shown", depth > 0);
  };
  document.addEventListener("dragstart", () => (isOwnPicture = true));
  document.addEventListener("dragend", () => (isOwnPicture = false));
  document.addEventListener("dragenter", (event) => droppable(event) && updateOverlay(1));
  document.addEventListener("dragleave", (event) => droppable(event) && updateOverlay(-1));
  document.addEventListener("dragover", (event) => {
    if (!droppable(event)) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = "copy";
  });
  document.addEventListener("drop", (event) => {
    if (!droppable(event)) return;
    event.preventDefault();
    updateOverlay(-depth);
    onDrop(event.dataTransfer);
  });
}

const isForText = (target) => Boolean(target.closest?.("input:not([type=checkbox], [type=range], [type=file])"));
