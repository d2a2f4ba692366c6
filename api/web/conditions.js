// Converts between the server's filters and conditions on columns, which the page's fields edit.
// A condition is {column, kind, ...}, by kind:
//   text     {operator: "is" | "prefix", value}
//   number   {from, to}, as typed
//   seconds  the same, for durations
//   decimal  {from, to}, as typed; sent as text, which is exact
//   clock    {from, to}, as times of day
//   time     {from, to}, as days
//   boolean  {value: "true" | "false"}
//   other    {operand}, kept unchanged because the fields cannot edit it

import { own } from "./elements.js";
import { isRounded, stringify } from "./json.js";

// The columns of every row. The source's own columns are more interesting and are listed first.
export const COMMON_COLUMNS = ["image_id", "format", "width", "height", "size", "modified", "uri", "content_hash", "etag"];
const UNIQUE = ["image_id", "uri"];
export const END_OF_DAY = "T23:59:59.999999";

/** The columns that the fields can filter by, as [name, kind]; `types` are Arrow's, by column. */
export function filterable(types) {
  const columns = Object.entries(types).map(([name, type]) => [name, kindOf(type)]);
  const rank = ([name]) => COMMON_COLUMNS.indexOf(name);
  return columns.filter(([, kind]) => kind).sort((one, other) => rank(one) - rank(other));
}

/** Those that pictures can be sorted by, because each has one value. */
export const sortable = (types) => filterable(types).filter(([name]) => !/^(\w*list|decimal256)/.test(types[name]));

/** Those that pictures can be grouped by; of times by their days. */
export const groupable = (types) => sortable(types).filter(([name, kind]) =>
  !UNIQUE.includes(name) && (["text", "boolean", "time"].includes(kind) || /^(u?int|dictionary<values=u?int)/.test(types[name])));

/** The kind of an Arrow type. A column of lists is filtered by its elements. */
function kindOf(type) {
  const inner = /^(?:large_|fixed_size_)?list(?:_view)?<\w+: (.+?)(?: not null)?>/.exec(type)?.[1];
  if (inner) return kindOf(inner);
  const dictionary = /^dictionary<values=(\w+)/.exec(type)?.[1];
  if (dictionary) return kindOf(dictionary);
  if (/^(large_)?string/.test(type)) return "text";
  if (/^(u?int\d+|halffloat|float|double)/.test(type)) return "number";
  if (/^(timestamp|date)/.test(type)) return "time";
  if (/^time\d/.test(type)) return "clock";
  if (/^duration/.test(type)) return "seconds";
  if (/^decimal/.test(type)) return "decimal";
  return type === "bool" ? "boolean" : null;
}

export const emptyCondition = (column, kind) => ({ column, kind, operator: "is", value: "", from: "", to: "" });

/** The filter of all conditions that are filled in, or null. */
export function toFilter(conditions) {
  const parts = conditions.map((condition) => [condition.column, toOperand(condition)]);
  const filter = Object.fromEntries(parts.filter(([, operand]) => operand !== undefined));
  return Object.keys(filter).length ? filter : null;
}

/** The conditions of a filter; `kinds` are the kinds of the columns, by name. */
export function toConditions(filter, kinds) {
  if (filter === null || typeof filter !== "object") return []; // the server reports what is wrong
  return Object.entries(filter).map(([column, operand]) => {
    const kind = own(kinds, column);
    const condition = { ...emptyCondition(column, kind), ...fieldValues(operand, kind) };
    // Editing keeps the meaning only if the condition converts back to the same operand.
    const isEditable = kind && stringify(toOperand(condition)) === stringify(operand);
    return isEditable ? condition : { column, kind: "other", operand };
  });
}

function toOperand({ kind, operator, value, from, to, operand }) {
  switch (kind) {
    case "text":
      if (!value) return undefined;
      return operator === "prefix" ? { $prefix: value } : value;
    case "boolean":
      return value ? value === "true" : undefined;
    case "number":
    case "seconds":
      return range(number(from), number(to));
    case "decimal":
    case "clock":
      return range(from || undefined, to || undefined);
    case "time":
      return range(from || undefined, to ? to + END_OF_DAY : undefined);
    default:
      return operand;
  }
}

function number(typed) {
  if (isRounded(typed)) return BigInt(typed);
  return typed === "" || Number.isNaN(Number(typed)) ? undefined : Number(typed);
}

function range(from, to) {
  if (from === undefined && to === undefined) return undefined;
  return { ...(from !== undefined && { $gte: from }), ...(to !== undefined && { $lte: to }) };
}

function fieldValues(operand, kind) {
  switch (kind) {
    case "text":
      if (operand?.$prefix) return { operator: "prefix", value: operand.$prefix };
      return { value: typeof operand === "string" ? operand : "" };
    case "boolean":
      return { value: String(operand) };
    case "number":
    case "seconds":
    case "decimal":
    case "clock":
      return { from: String(operand?.$gte ?? ""), to: String(operand?.$lte ?? "") };
    case "time":
      return { from: String(operand?.$gte ?? ""), to: String(operand?.$lte ?? "").replace(END_OF_DAY, "") };
    default:
      return {};
  }
}
