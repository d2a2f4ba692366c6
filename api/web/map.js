// A map of where pictures were taken: points by EXIF longitude and latitude, without a background.

import { cropButtons } from "./crop.js";
import { element, formatCount } from "./elements.js";

const COLUMNS = ["exif_longitude", "exif_latitude"];
const WIDTH = 720;
const HEIGHT = 360;
const ZOOM_OUT = 1.15; // ratio of the visible span to that of the points
const MIN_SPAN = 0.004; // degrees of latitude, about 450 metres
const LINE_STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30];

/** A map of the pictures that have a location, or null if none has. `onFilter` gets `filter` with the drawn box added. */
export function placesMap(matches, filter, onFilter) {
  const coordinates = matches.map(({ metadata }) => COLUMNS.map((name) => metadata?.[name]));
  const places = coordinates.filter((place) => place.every(Number.isFinite));
  if (!places.length) return null;
  const view = viewOf(places);
  const caption = `${formatCount(places.length)} of ${formatCount(matches.length)} pictures have a location.`;
  const img = element("img", { src: drawMap(places, view), alt: caption, width: WIDTH, height: HEIGHT });
  const map = element("div", { class: "map" }, img);
  const onBox = (box) => onFilter({ ...filter, ...boxFilter(box, view) });
  const buttons = element("div", { class: "actions" }, ...cropButtons(map, onBox, ["Choose a region", "Only this region"]));
  const name = element("span", { class: "condition-name", ariaHidden: "true" }, "location");
  return element("div", { class: "facet" }, name, element("div", {}, map, element("p", { class: "hint" }, caption), buttons));
}

/** The map's west and north edges and its spans, in degrees, at the same scale in both directions. */
function viewOf(places) {
  const [[west, east], [south, north]] = [0, 1].map((axis) => {
    const values = places.map((place) => place[axis]);
    return [Math.min(...values), Math.max(...values)];
  });
  const ratio = Math.max(Math.cos(((north + south) / 2) * (Math.PI / 180)), 0.1); // a degree of longitude to one of latitude
  const latSpan = ZOOM_OUT * Math.max(north - south, ((east - west) * ratio * HEIGHT) / WIDTH, MIN_SPAN);
  const lonSpan = (latSpan * WIDTH) / HEIGHT / ratio;
  return { west: (west + east - lonSpan) / 2, north: (south + north + latSpan) / 2, lonSpan, latSpan };
}

/** The filter for a box, which is in fractions of the map. */
function boxFilter([x, y, width, height], { west, north, lonSpan, latSpan }) {
  const range = (from, to) => ({ $gte: rounded(from), $lte: rounded(to) });
  return {
    exif_longitude: range(west + x * lonSpan, west + (x + width) * lonSpan),
    exif_latitude: range(north - (y + height) * latSpan, north - y * latSpan),
  };
}

/** The data URL of an SVG: the points over a grid. Its colours are visible on light and dark backgrounds. */
function drawMap(places, { west, north, lonSpan, latSpan }) {
  const x = (longitude) => rounded(((longitude - west) / lonSpan) * WIDTH);
  const y = (latitude) => rounded(((north - latitude) / latSpan) * HEIGHT);
  const lines = [
    ...ticks(west, west + lonSpan).map((at) => line(x(at), 0, x(at), HEIGHT, degrees(at, "E", "W"))),
    ...ticks(north - latSpan, north).map((at) => line(0, y(at), WIDTH, y(at), degrees(at, "N", "S"))),
  ];
  const points = places.map(([longitude, latitude]) => `<circle cx="${x(longitude)}" cy="${y(latitude)}" r="5"/>`);
  return `data:image/svg+xml,${encodeURIComponent(
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${HEIGHT}" font-family="system-ui,sans-serif" font-size="12">` +
    `${lines.join("")}<g fill="#d9480f" fill-opacity=".7" stroke="#fff">${points.join("")}</g></svg>`)}`;
}

const line = (x, y, toX, toY, label) =>
  `<path d="M${x} ${y}L${toX} ${toY}" stroke="#888" stroke-opacity=".5"/>` +
  `<text x="${x + 4}" y="${y ? y - 4 : HEIGHT - 4}" fill="#808080">${label}</text>`;

function ticks(from, to) {
  const step = LINE_STEPS.find((each) => (to - from) / each <= 6) ?? 60;
  const first = Math.ceil(from / step);
  return Array.from({ length: Math.floor(to / step) - first + 1 }, (_, number) => rounded((first + number) * step));
}

const degrees = (at, plus, minus) => `${Math.abs(at)}° ${at < 0 ? minus : plus}`;
const rounded = (number) => Math.round(number * 1e5) / 1e5;
