// Where pictures were taken: points by longitude and latitude, as far as their EXIF says. No other server is asked.

import { cropButton } from "./crop.js";
import { counted, element } from "./elements.js";

const COLUMNS = ["exif_longitude", "exif_latitude"];
const WIDTH = 720;
const HEIGHT = 360;
const AROUND = 1.15; // the span that is shown, relative to that of the points
const LEAST = 0.004; // degrees of latitude that are shown: some hundred metres
const STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30];

/** A map of the pictures that have a place, or null. `onFilter` gets the query's filter with a box that was drawn. */
export function placesMap(matches, filter, onFilter) {
  const places = matches.map(({ metadata }) => COLUMNS.map((name) => metadata?.[name]));
  const known = places.filter((place) => place.every(Number.isFinite));
  if (!known.length) return null;
  const view = viewOf(known);
  const said = `${counted(known.length)} of ${counted(matches.length)} pictures have a place.`;
  const img = element("img", { src: drawing(known, view), alt: said, width: WIDTH, height: HEIGHT });
  const map = element("div", { class: "map" }, img);
  const onBox = (box) => onFilter({ ...filter, ...within(box, view) });
  const buttons = element("div", { class: "actions" }, ...cropButton(map, onBox, ["Choose a region", "Only this region"]));
  const name = element("span", { class: "condition-name", ariaHidden: "true" }, "where taken");
  return element("div", { class: "facet" }, name, element("div", {}, map, element("p", { class: "hint" }, said), buttons));
}

/** West, north, and degrees of longitude and latitude that are shown: the same distance in both directions. */
function viewOf(places) {
  const [[west, east], [south, north]] = [0, 1].map((axis) => {
    const values = places.map((place) => place[axis]);
    return [Math.min(...values), Math.max(...values)];
  });
  const narrower = Math.max(Math.cos(((north + south) / 2) * (Math.PI / 180)), 0.1); // a degree of longitude than one of latitude
  const tall = AROUND * Math.max(north - south, ((east - west) * narrower * HEIGHT) / WIDTH, LEAST);
  const wide = (tall * WIDTH) / HEIGHT / narrower;
  return { west: (west + east - wide) / 2, north: (south + north + tall) / 2, wide, tall };
}

/** The filter of a box in shares of the map. */
function within([x, y, width, height], { west, north, wide, tall }) {
  const range = (from, to) => ({ $gte: rounded(from), $lte: rounded(to) });
  return {
    exif_longitude: range(west + x * wide, west + (x + width) * wide),
    exif_latitude: range(north - (y + height) * tall, north - y * tall),
  };
}

/** The points over lines of whole degrees or parts of them, as the address of an SVG. Its colours show on light and dark. */
function drawing(places, { west, north, wide, tall }) {
  const x = (longitude) => rounded(((longitude - west) / wide) * WIDTH);
  const y = (latitude) => rounded(((north - latitude) / tall) * HEIGHT);
  const lines = [
    ...ticks(west, west + wide).map((at) => line(x(at), 0, x(at), HEIGHT, degrees(at, "E", "W"))),
    ...ticks(north - tall, north).map((at) => line(0, y(at), WIDTH, y(at), degrees(at, "N", "S"))),
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
  const step = STEPS.find((each) => (to - from) / each <= 6) ?? 60;
  const first = Math.ceil(from / step);
  return Array.from({ length: Math.floor(to / step) - first + 1 }, (_, number) => rounded((first + number) * step));
}

const degrees = (at, plus, minus) => `${Math.abs(at)}° ${at < 0 ? minus : plus}`;
const rounded = (number) => Math.round(number * 1e5) / 1e5;
