// A box on a picture: the part of it that is searched with.

import { element } from "./elements.js";

const STEP = 0.02; // of a side, for each press of an arrow key
const LEAST = 0.03; // of a side: what is smaller was a click
const HOW = "Part of the picture. Drag a box. Arrow keys move it, and with Shift resize it.";

/** A layer that lies on the picture of `mat`, with a box where `crop` is. */
function layer(mat, crop) {
  const box = element("div", { class: "crop-box" });
  const made = element("div", { class: "crop" }, box);
  const img = mat.querySelector("img");
  new ResizeObserver(() => place(made, img)).observe(img);
  img.addEventListener("load", () => place(made, img));
  place(made, img);
  draw(box, crop);
  mat.append(made);
  return { made, box };
}

/** Show which part was searched with. */
export const showCrop = (mat, crop) => layer(mat, crop).made.classList.add("shown");

/** A button that lets somebody draw a box on the picture of `mat` and search with it: `onCrop` gets the shares. */
export function cropButton(mat, onCrop, [begin, end] = ["Search a part", "Search this part"]) {
  const start = element("button", { type: "button", class: "quiet" }, begin);
  const done = element("button", { type: "button", class: "primary", hidden: true }, end);
  const cancel = element("button", { type: "button", class: "quiet", hidden: true }, "Cancel");
  let drawing = null;
  const toggle = (on) => {
    mat.querySelector(".crop.shown")?.remove();
    drawing?.made.remove();
    drawing = on ? drawn(mat, { onDone: () => done.click(), onCancel: () => cancel.click() }) : null;
    mat.parentElement.classList.toggle("cropping", on);
    start.hidden = on;
    done.hidden = cancel.hidden = !on;
    (drawing?.made ?? start).focus({ preventScroll: true });
  };
  start.addEventListener("click", () => toggle(true));
  cancel.addEventListener("click", () => toggle(false));
  done.addEventListener("click", () => onCrop(drawing.crop()));
  return [start, done, cancel];
}

function drawn(mat, { onDone, onCancel }) {
  let crop = [0.25, 0.25, 0.5, 0.5];
  const { made, box } = layer(mat, crop);
  const set = (changed) => draw(box, (crop = changed));
  Object.assign(made, { tabIndex: 0, role: "application", ariaLabel: HOW });
  made.addEventListener("pointerdown", (down) => {
    made.setPointerCapture(down.pointerId);
    down.preventDefault();
    const from = at(made, down);
    const before = crop;
    const move = (event) => set(between(from, at(made, event)));
    made.addEventListener("pointermove", move);
    made.addEventListener("pointerup", () => {
      made.removeEventListener("pointermove", move);
      if (crop[2] < LEAST || crop[3] < LEAST) set(before);
    }, { once: true });
  });
  made.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, -STEP], ArrowDown: [0, STEP] }[event.key];
    if (step) set(event.shiftKey ? resized(crop, step) : moved(crop, step));
    else if (event.key === "Enter") onDone();
    else if (event.key === "Escape") onCancel();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  return { made, crop: () => crop.map((share) => Math.round(share * 1e4) / 1e4) };
}

/** The layer on the picture itself, which may fill its element only in part. */
function place(made, img) {
  const ratio = img.naturalWidth / img.naturalHeight || 1;
  const width = Math.min(img.clientWidth, img.clientHeight * ratio);
  const height = width / ratio;
  const sides = {
    left: img.offsetLeft + (img.clientWidth - width) / 2,
    top: img.offsetTop + (img.clientHeight - height) / 2,
    width,
    height,
  };
  for (const [side, pixels] of Object.entries(sides)) made.style[side] = `${pixels}px`;
}

function draw(box, [x, y, width, height]) {
  const sides = { left: x, top: y, width, height };
  for (const [side, share] of Object.entries(sides)) box.style[side] = `${share * 100}%`;
}

const clamp = (value, most = 1) => Math.min(Math.max(value, 0), most);

function at(made, event) {
  const { left, top, width, height } = made.getBoundingClientRect();
  return [clamp((event.clientX - left) / width), clamp((event.clientY - top) / height)];
}

const between = ([x, y], [to, down]) => [Math.min(x, to), Math.min(y, down), Math.abs(to - x), Math.abs(down - y)];
const moved = ([x, y, width, height], [dx, dy]) => [clamp(x + dx, 1 - width), clamp(y + dy, 1 - height), width, height];
const resized = ([x, y, width, height], [dx, dy]) =>
  [x, y, Math.max(LEAST, clamp(width + dx, 1 - x)), Math.max(LEAST, clamp(height + dy, 1 - y))];
