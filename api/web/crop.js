// A box on a picture selects the part to search with.

import { element } from "./elements.js";

const STEP = 0.02; // fraction of a side that an arrow key moves the box
const MIN_SIDE = 0.03; // fraction of a side; a smaller box was a click
const INSTRUCTIONS = "Part of the picture. Drag a box. Arrow keys move it; Shift with arrow keys resizes it.";

/** Add a layer over the picture in `mat`, with a box at `crop`. */
function addLayer(mat, crop) {
  const box = element("div", { class: "crop-box" });
  draw(box, crop);
  return { layer: layerOver(mat, box), box };
}

function layerOver(mat, ...boxes) {
  const layer = element("div", { class: "crop" }, ...boxes);
  const img = mat.querySelector("img");
  new ResizeObserver(() => place(layer, img)).observe(img);
  img.addEventListener("load", () => place(layer, img));
  place(layer, img);
  mat.append(layer);
  return layer;
}

/** Show the part that the search used. */
export const showCrop = (mat, crop) => addLayer(mat, crop).layer.classList.add("shown");

/** Show where the lines with the words of a search are. */
export function showLines(mat, lines) {
  if (!lines.length) return;
  const boxes = lines.map(() => element("div", { class: "line-box" }));
  boxes.forEach((box, number) => draw(box, lines[number]));
  layerOver(mat, ...boxes).classList.add("shown");
}

/**
 * Buttons to draw a box on the picture in `mat`; none are left if it cannot be shown. `onCrop` gets the box as fractions
 * of the picture.
 */
export function cropButtons(mat, onCrop, [startText, doneText] = ["Search a part", "Search this part"]) {
  const start = element("button", { type: "button", class: "quiet" }, startText);
  const done = element("button", { type: "button", class: "primary", hidden: true }, doneText);
  const cancel = element("button", { type: "button", class: "quiet", hidden: true }, "Cancel");
  let drawing = null;
  const toggle = (on) => {
    for (const layer of mat.querySelectorAll(".crop.shown")) layer.remove();
    drawing?.layer.remove();
    drawing = on ? editableBox(mat, { onDone: () => done.click(), onCancel: () => cancel.click() }) : null;
    mat.parentElement.classList.toggle("cropping", on);
    start.hidden = on;
    done.hidden = cancel.hidden = !on;
    (drawing?.layer ?? start).focus({ preventScroll: true });
  };
  start.addEventListener("click", () => toggle(true));
  cancel.addEventListener("click", () => toggle(false));
  done.addEventListener("click", () => onCrop(drawing.crop()));
  mat.querySelector("img").addEventListener("error", () => {
    if (drawing) toggle(false);
    for (const button of [start, done, cancel]) button.remove();
  });
  return [start, done, cancel];
}

function editableBox(mat, { onDone, onCancel }) {
  let crop = [0.25, 0.25, 0.5, 0.5];
  const { layer, box } = addLayer(mat, crop);
  const set = (newCrop) => draw(box, (crop = newCrop));
  Object.assign(layer, { tabIndex: 0, role: "application", ariaLabel: INSTRUCTIONS });
  layer.addEventListener("pointerdown", (down) => {
    layer.setPointerCapture(down.pointerId);
    down.preventDefault();
    const from = pointerPosition(layer, down);
    const previous = crop;
    const move = (event) => set(boxBetween(from, pointerPosition(layer, event)));
    layer.addEventListener("pointermove", move);
    layer.addEventListener("pointerup", () => {
      layer.removeEventListener("pointermove", move);
      if (crop[2] < MIN_SIDE || crop[3] < MIN_SIDE) set(previous);
    }, { once: true });
  });
  layer.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, -STEP], ArrowDown: [0, STEP] }[event.key];
    if (step) set(event.shiftKey ? resizeBox(crop, step) : moveBox(crop, step));
    else if (event.key === "Enter") onDone();
    else if (event.key === "Escape") onCancel();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  return { layer, crop: () => crop.map((fraction) => Math.round(fraction * 1e4) / 1e4) };
}

/** Put the layer over the picture itself, which may not fill its element. */
function place(layer, img) {
  const ratio = img.naturalWidth / img.naturalHeight || 1;
  const width = Math.min(img.clientWidth, img.clientHeight * ratio);
  const height = width / ratio;
  const sides = {
    left: img.offsetLeft + (img.clientWidth - width) / 2,
    top: img.offsetTop + (img.clientHeight - height) / 2,
    width,
    height,
  };
  for (const [side, pixels] of Object.entries(sides)) layer.style[side] = `${pixels}px`;
}

function draw(box, [x, y, width, height]) {
  const sides = { left: x, top: y, width, height };
  for (const [side, fraction] of Object.entries(sides)) box.style[side] = `${fraction * 100}%`;
}

const clamp = (value, max = 1) => Math.min(Math.max(value, 0), max);

function pointerPosition(layer, event) {
  const { left, top, width, height } = layer.getBoundingClientRect();
  return [clamp((event.clientX - left) / width), clamp((event.clientY - top) / height)];
}

const boxBetween = ([x, y], [toX, toY]) => [Math.min(x, toX), Math.min(y, toY), Math.abs(toX - x), Math.abs(toY - y)];
const moveBox = ([x, y, width, height], [dx, dy]) => [clamp(x + dx, 1 - width), clamp(y + dy, 1 - height), width, height];
const resizeBox = ([x, y, width, height], [dx, dy]) =>
  [x, y, Math.max(MIN_SIDE, clamp(width + dx, 1 - x)), Math.max(MIN_SIDE, clamp(height + dy, 1 - y))];
