// Marks the words of a search in texts, and finds the lines of text in a picture that have them.

import { element, own } from "./elements.js";

// As index/words/text.py splits and folds texts.
const ALONE = "[\\u0e00-\\u0eff\\u1000-\\u109f\\u1780-\\u17ff\\u3005-\\u3007\\u3040-\\u30ff\\u31f0-\\u31ff\\u3400-\\u4dbf\\u4e00-\\u9fff\\u{20000}-\\u{3ffff}]";
const WORDS = new RegExp(`${ALONE}|(?:(?!${ALONE})[\\p{L}\\p{N}\\p{M}\\p{Cf}])+`, "gu");
const POINTS = /[\u0300-\u036f\u0591-\u05c7\u0640\u064b-\u065f\u0670\p{Cf}]/gu;
const BEFORE = 30; // characters of a snippet before its first word
const SNIPPET = 200; // characters; more than a card shows

/** By id, the words of a picture that matched in the last search that was not for pictures like another, by column. */
export const matchedWords = new Map();

// Upper case first, as it makes "ss" of "ß".
const fold = (word) => word.normalize("NFKD").replace(POINTS, "").toUpperCase().toLowerCase();

/** Where a text has words of `terms`, as [start, end]; a term is words after each other, and one with * goes on. */
function ranges(text, terms) {
  const found = [...text.matchAll(WORDS)].map(({ 0: word, index }) => ({ word: fold(word), start: index, end: index + word.length }));
  const wanted = terms.map((term) => ({ words: term.replace(/\*$/, "").split(" ").map(fold), goesOn: term.endsWith("*") }));
  const isHit = found.map(() => false);
  for (const { words, goesOn } of wanted) {
    const fits = (at, place) =>
      found[at]?.word === words[place] || (goesOn && place === words.length - 1 && found[at]?.word.startsWith(words[place]));
    found.forEach((_, at) => {
      if (words.every((_, place) => fits(at + place, place))) isHit.fill(true, at, at + words.length);
    });
  }
  return found.filter((_, at) => isHit[at]).map(({ start, end }) => [start, end]);
}

/** A text as strings and marks. */
export function marked(text, terms = []) {
  const parts = [];
  let at = 0;
  for (const [start, end] of ranges(text, terms)) {
    parts.push(text.slice(at, start), element("mark", {}, text.slice(start, end)));
    at = end;
  }
  return [...parts, text.slice(at)].filter((part) => part !== "");
}

/** The part of a text around the first of the words, with marks; null if it has none of them. */
export function snippet(text, terms) {
  const [first] = ranges(text, terms);
  if (!first) return null;
  const from = first[0] > BEFORE ? text.lastIndexOf(" ", first[0] - BEFORE) + 1 : 0;
  const start = first[0] - from > 2 * BEFORE ? first[0] : from;
  return [start ? "…" : "", ...marked(text.slice(start, start + SNIPPET), terms)];
}

/** The boxes of the lines in a picture that have these words, as [left, top, width, height] in fractions of it. */
export function lineBoxes(metadata, words) {
  return Object.entries(words ?? {}).flatMap(([column, terms]) => {
    const [text, boxes] = [column, `${column}_boxes`].map((name) => own(metadata, name));
    if (typeof text !== "string" || !Array.isArray(boxes)) return [];
    const hits = ranges(text, terms);
    let start = 0;
    return text.split("\n").flatMap((line, number) => {
      const end = start + line.length;
      const isFound = hits.some(([from]) => from >= start && from < end);
      start = end + 1;
      return isFound && boxes[number]?.length === 4 ? [boxes[number]] : [];
    });
  });
}
