// Pictures that come in by hand: chosen, dropped or pasted.

/**
 * Call `onPicture` with each picture that is chosen in `input`, dropped on the page or pasted into it, and `onAddress`
 * with a web address that comes in the same way. `veil` is shown while something that can be dropped is over the page.
 */
export function takePictures({ input, veil, onPicture, onAddress }) {
  input.addEventListener("change", () => {
    const [file] = input.files;
    input.value = ""; // or choosing the same file again would go unnoticed
    if (file) onPicture(file);
  });
  document.addEventListener("paste", (event) => {
    if (take(event.clipboardData, onPicture, isEditable(event.target) ? null : onAddress)) event.preventDefault();
  });
  watchDrags(veil, (data) => take(data, onPicture, onAddress));
}

/** Whether there was something to take. */
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

function watchDrags(veil, onDrop) {
  let own = false; // pictures of the page itself can be dragged elsewhere, but are not dropped here
  let depth = 0;
  const droppable = ({ dataTransfer }) =>
    !own && ["Files", "text/uri-list"].some((type) => dataTransfer.types.includes(type));
  const cover = (change) => {
    depth = Math.max(0, depth + change);
    veil.classList.toggle("shown", depth > 0);
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
