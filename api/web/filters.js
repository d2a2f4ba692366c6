// The fields that filter a search by the columns of the collection.

import { emptyCondition, filterable, toConditions, toFilter } from "./conditions.js";
import { element, offer } from "./elements.js";
import { conditionText } from "./facets.js";
import { stringify } from "./json.js";

/** Fields in `root` for the columns that are offered. `onRemove` is called when a condition has been removed. */
export class Filters {
  #columns = [];
  #rows = element("div", { class: "conditions" });
  #choice = element("select", { id: "filter-column" });
  #conditions = [];

  constructor(root, onRemove) {
    this.onRemove = onRemove;
    const add = element("button", { type: "button", class: "quiet" }, "Add filter");
    add.addEventListener("click", () => this.#add(this.#choice.value));
    const apply = element("button", { type: "submit", class: "quiet" }, "Apply");
    const label = element("label", { htmlFor: "filter-column" }, "Column");
    root.replaceChildren(this.#rows, element("div", { class: "condition-add" }, label, this.#choice, add, apply));
  }

  /** Offer the columns of `types`, which are Arrow's, by column; the fields that are there stay. */
  offer(types) {
    this.#columns = filterable(types);
    offer(this.#choice, this.#columns.map(([name]) => element("option", { value: name }, name)));
  }

  /** The fields as a filter for the server, or null. */
  get filter() {
    return toFilter(this.#conditions);
  }

  set filter(filter) {
    if (stringify(filter) === stringify(this.filter)) return; // do not disturb somebody who is typing
    this.#conditions = toConditions(filter, Object.fromEntries(this.#columns));
    this.#rows.replaceChildren(...this.#conditions.map((condition) => this.#row(condition)));
  }

  #add(column) {
    let position = this.#conditions.findIndex((condition) => condition.column === column);
    if (position < 0) {
      const [, kind] = this.#columns.find(([name]) => name === column);
      position = this.#conditions.push(emptyCondition(column, kind)) - 1;
      this.#rows.append(this.#row(this.#conditions[position]));
    }
    this.#rows.children[position].querySelector("select, input, button").focus();
  }

  #row(condition) {
    const { column } = condition;
    const remove = element("button", { type: "button", class: "remove", ariaLabel: `Remove the filter on ${column}` });
    remove.append("×");
    const name = element("span", { class: "condition-name", ariaHidden: "true" }, column);
    const row = element("div", { class: "condition", role: "group", ariaLabel: column });
    row.append(name, element("div", { class: "condition-fields" }, ...fields(condition)), remove);
    remove.addEventListener("click", () => {
      this.#conditions.splice(this.#conditions.indexOf(condition), 1);
      row.remove();
      this.#choice.focus();
      this.onRemove();
    });
    return row;
  }
}

function fields(condition) {
  switch (condition.kind) {
    case "text":
      return [
        choice(condition, "operator", "how", { is: "is", prefix: "starts with" }),
        input(condition, "value", "value", { type: "text", autocapitalize: "none", spellcheck: false }),
      ];
    case "boolean":
      return [choice(condition, "value", "value", { "": "either", true: "yes", false: "no" })];
    case "number":
    case "decimal":
      return rangeFields(condition, { type: "number", step: "any" });
    case "seconds":
      return rangeFields(condition, { type: "number", step: "any", placeholder: "seconds" });
    case "clock":
      return rangeFields(condition, { type: "time", step: 1 });
    case "time":
      return rangeFields(condition, { type: "date" });
    default:
      return [element("code", {}, conditionText(condition.operand))];
  }
}

function rangeFields(condition, properties) {
  return ["from", "to"].map((end) => element("label", {}, end, input(condition, end, end, properties)));
}

function input(condition, field, name, properties) {
  const made = element("input", { ...properties, value: condition[field], ariaLabel: `${condition.column}, ${name}` });
  made.addEventListener("input", () => (condition[field] = made.value));
  return made;
}

function choice(condition, field, name, options) {
  const items = Object.entries(options).map(([value, text]) => element("option", { value }, text));
  const made = element("select", { ariaLabel: `${condition.column}, ${name}` }, ...items);
  made.value = condition[field];
  made.addEventListener("change", () => (condition[field] = made.value));
  return made;
}
