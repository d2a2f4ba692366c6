// The grid in a notebook, with its controls. Every action is sent to Python, which replies with a new `view`.

function element(tag, properties = {}, children = []) {
  const created = Object.assign(document.createElement(tag), properties);
  created.append(...children);
  return created;
}

function mat(card) {
  let content;
  if (card.src) content = element("img", { src: card.src, alt: card.heading });
  else if (card.words) content = element("span", { className: "lk-words", textContent: card.words });
  else content = element("span", { className: "lk-missing", textContent: card.problem });
  return element("div", { className: "lk-mat" }, [content]);
}

function caption(card) {
  return element("figcaption", {}, [
    element("b", { textContent: card.heading }),
    element("span", { className: "lk-detail", textContent: card.detail }),
  ]);
}

function figure(card, parts) {
  return element("figure", { className: "lk-card", title: card.tooltip }, parts);
}

function match(card, send) {
  const like = element("button", {
    className: "lk-like",
    ariaLabel: `more like ${card.id}`,
    onclick: () => send({ like: card.id }),
  }, [mat(card)]);
  const toward = element("button", {
    className: "lk-toward",
    textContent: "⇄",
    title: "slide from the query to this picture",
    ariaLabel: `slide towards ${card.id}`,
    onclick: () => send({ toward: card.id }),
  });
  return figure(card, [like, toward, caption(card)]);
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
    const status = element("div", { className: "lk-caption", textContent: view.error || view.caption });
    status.setAttribute("role", "status");
    el.replaceChildren(element("div", { className: "likeness" }, [
      element("div", { className: "lk-controls" }, controls),
      status,
      element("div", { className: "lk-row" }, [
        element("div", { className: "lk-query" }, view.query.map((card) => figure(card, [mat(card), caption(card)]))),
        element("div", { className: "lk-grid" }, view.matches.map((card) => match(card, send))),
      ]),
    ]));
  };
  model.on("change:view", draw);
  draw();
  return () => model.off("change:view", draw);
}

export default { render };
