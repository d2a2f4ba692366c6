// JSON with exact integers: those that a JavaScript number would round are BigInts, in every browser.

const MARK = "\0integer:";
const TOKENS = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?/gs;

export const isRounded = (digits) => /^-?[1-9]\d{15,}$/.test(digits) && !Number.isSafeInteger(Number(digits));

export function parse(text) {
  const marked = text.replace(TOKENS, (token) => (isRounded(token) ? JSON.stringify(MARK + token) : token));
  if (marked === text) return JSON.parse(text); // most texts have no such integer
  return JSON.parse(marked, (_, value) => (isMarked(value) ? BigInt(value.slice(MARK.length)) : value));
}

export function stringify(value) {
  const text = JSON.stringify(value, (_, each) => (typeof each === "bigint" ? `${MARK}${each}` : each));
  return text?.replace(/"\\u0000integer:(-?\d+)"/g, "$1");
}

const isMarked = (value) => typeof value === "string" && value.startsWith(MARK);
