// The grid in a notebook, with its controls. Every action is sent to Python, which replies with a new `view`.

function element(tag, properties = {}, children = []) {
  const created = Object.assign(document.createElement(tag), properties);
  created.append(...children);
  return created;
}

/** Make a match's picture a button, with another one on it. */
function addButtons(card, id, send) {
  const mat = card.querySelector(".lk-mat");
  const like = element("button", {
    className: "lk-like",
    ariaLabel: `more like ${id}`,
    onclick: () => send({ like: id }),
  });
  const toward = element("button", {
    className: "lk-toward",
    textContent: "⇄",
    title: "slide from the query to this picture",
    ariaLabel: `slide towards ${id}`,
    onclick: () => send({ toward: id }),
  });
  mat.replaceWith(like, toward);
  like.append(mat);
}

function button(text, enabled, onclick) {
  return element("button", { className: "lk-button", textContent: text, disabled: !enabled, onclick });
}

function slider(view, send) {
  const input = element("input", { type: "range", min: 0, max: 1, step: 0.05, value: view.share });
  input.ariaLabel = `from ${view.ends[0]} to ${view.ends[1]}`;
  input.onchange = () => send({ share: Number(input.value) });
  return element("label", { className: "lk-slide" }, [
    element("span", { textContent: view.ends[0] }), input, element("span", { textContent: view.ends[1] }),
  ]);
}

function render({ model, el }) {
  const send = (message) => {
    el.querySelector(".likeness").ariaBusy = "true";
    model.send(message);
  };
  const draw = () => {
    const view = model.get("view");
    const controls = [
      button("← back", view.can_go_back, () => send({ back: true })),
      button("‹ previous", view.page > 0, () => send({ page: view.page - 1 })),
      element("span", { textContent: `page ${view.page + 1}` }),
      button("next ›", view.has_more, () => send({ page: view.page + 1 })),
    ];
    if (view.ends.length === 2) controls.push(slider(view, send));
    el.innerHTML = view.html; // the static grid, in which Python has escaped all texts
    const status = el.querySelector(".lk-caption");
    status.setAttribute("role", "status");
    if (view.error) status.textContent = view.error;
    status.before(element("div", { className: "lk-controls" }, controls));
    el.querySelectorAll(".lk-grid .lk-card").forEach((card, at) => addButtons(card, view.ids[at], send));
  };
  model.on("change:view", draw);
  draw();
  return () => model.off("change:view", draw);
}

export default { render };
