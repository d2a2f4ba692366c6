// Converts between the server's filters and conditions on columns, which the fields of the page edit.
// A condition is {column, kind, ...}, by kind:
//   text     {operator: "is" | "prefix", value}
//   number   {from, to}, as typed
//   time     {from, to}, days
//   boolean  {value: "true" | "false"}
//   other    {operand}: what the fields cannot edit, kept unchanged

// The columns of every row. Those of the source are more interesting and come first.
export const COMMON_COLUMNS = ["image_id", "format", "width", "height", "size", "modified", "uri", "content_hash", "etag"];
const END_OF_DAY = "T23:59:59.999999";

/** Columns that the fields can filter, as [name, kind], from Arrow's types by name. */
export function filterable(types) {
  const known = Object.entries(types).map(([name, type]) => [name, kindOf(type)]);
  const rank = ([name]) => COMMON_COLUMNS.indexOf(name);
  return known.filter(([, kind]) => kind).sort((one, other) => rank(one) - rank(other));
}

/** The kind of an Arrow type. A column of lists is filtered by its elements. */
function kindOf(type) {
  const inner = /^(?:large_|fixed_size_)?list(?:_view)?<\w+: (.+?)(?: not null)?>/.exec(type)?.[1];
  if (inner) return kindOf(inner);
  const dictionary = /^dictionary<values=(\w+)/.exec(type)?.[1];
  if (dictionary) return kindOf(dictionary);
  if (/^(large_)?string/.test(type)) return "text";
  if (/^(u?int\d+|halffloat|float|double)/.test(type)) return "number";
  if (/^(timestamp|date)/.test(type)) return "time";
  return type === "bool" ? "boolean" : null;
}

export const blank = (column, kind) => ({ column, kind, operator: "is", value: "", from: "", to: "" });

/** The filter of all conditions that are filled in, or null. */
export function toFilter(conditions) {
  const parts = conditions.map((condition) => [condition.column, operand(condition)]);
  const filter = Object.fromEntries(parts.filter(([, value]) => value !== undefined));
  return Object.keys(filter).length ? filter : null;
}

/** The conditions of a filter; `kinds` are those of the columns. */
export function toConditions(filter, kinds) {
  if (filter === null || typeof filter !== "object") return []; // from a hand-written address: the server reports it
  return Object.entries(filter).map(([column, given]) => {
    const condition = { ...blank(column, kinds[column]), ...fieldValues(given, kinds[column]) };
    // Only a filter that converts back unchanged can be edited without a change of meaning.
    const same = kinds[column] && JSON.stringify(operand(condition)) === JSON.stringify(given);
    return same ? condition : { column, kind: "other", operand: given };
  });
}

function operand({ kind, operator, value, from, to, operand: other }) {
  switch (kind) {
    case "text":
      if (!value) return undefined;
      return operator === "prefix" ? { $prefix: value } : value;
    case "boolean":
      return value ? value === "true" : undefined;
    case "number":
      return range(number(from), number(to));
    case "time":
      return range(from || undefined, to ? to + END_OF_DAY : undefined);
    default:
      return other;
  }
}

const number = (typed) => (typed === "" || Number.isNaN(Number(typed)) ? undefined : Number(typed));

function range(from, to) {
  if (from === undefined && to === undefined) return undefined;
  return { ...(from !== undefined && { $gte: from }), ...(to !== undefined && { $lte: to }) };
}

function fieldValues(given, kind) {
  switch (kind) {
    case "text":
      if (given?.$prefix) return { operator: "prefix", value: given.$prefix };
      return { value: typeof given === "string" ? given : "" };
    case "boolean":
      return { value: String(given) };
    case "number":
      return { from: String(given?.$gte ?? ""), to: String(given?.$lte ?? "") };
    case "time":
      return { from: String(given?.$gte ?? ""), to: String(given?.$lte ?? "").replace(END_OF_DAY, "") };
    default:
      return {};
  }
}
