// Takes pictures that are chosen, dropped or pasted.

/**
 * Call `onPicture` with each picture that is chosen in `input`, dropped on the page or pasted into it, and `onAddress`
 * with each web address that is dropped or pasted. `overlay` is shown while something is dragged over the page.
 */
export function takePictures({ input, overlay, onPicture, onAddress }) {
  input.addEventListener("change", () => {
    const [file] = input.files;
    input.value = ""; // otherwise choosing the same file again would not be noticed
    if (file) onPicture(file);
  });
  document.addEventListener("paste", (event) => {
    if (take(event.clipboardData, onPicture, isEditable(event.target) ? null : onAddress)) event.preventDefault();
  });
  watchDrags(overlay, (data) => take(data, onPicture, onAddress));
}

/** Returns whether there was anything to take. */
function take(data, onPicture, onAddress) {
  const [file] = data.files;
  if (file) {
    onPicture(file);
    return true;
  }
  const lines = (data.getData("text/uri-list") || data.getData("text/plain")).split(/\r?\n/);
  const address = lines.find((line) => /^https?:\/\/\S+$/i.test(line));
  if (!address || !onAddress) return false;
  onAddress(address);
  return true;
}

function watchDrags(overlay, onDrop) {
  let own = false; // the page's own pictures can be dragged elsewhere, but not dropped here
  let depth = 0;
  const droppable = ({ dataTransfer }) =>
    !own && ["Files", "text/uri-list"].some((type) => dataTransfer.types.includes(type));
  const cover = (change) => {
    depth = Math.max(0, depth + change);
    overlay.classList.toggle("shown", depth > 0);
  };
  document.addEventListener("dragstart", () => (own = true));
  document.addEventListener("dragend", () => (own = false));
  document.addEventListener("dragenter", (event) => droppable(event) && cover(1));
  document.addEventListener("dragleave", (event) => droppable(event) && cover(-1));
  document.addEventListener("dragover", (event) => {
    if (!droppable(event)) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = "copy";
  });
  document.addEventListener("drop", (event) => {
    if (!droppable(event)) return;
    event.preventDefault();
    cover(-depth);
    onDrop(event.dataTransfer);
  });
}

const isEditable = (target) => Boolean(target.closest?.("input, textarea, [contenteditable]"));
