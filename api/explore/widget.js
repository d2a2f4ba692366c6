// The grid of a notebook with its controls: all that happens is told to Python, which answers with another `view`.

function element(tag, properties = {}, children = []) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function mat(card) {
  let inside;
  if (card.src) inside = element("img", { src: card.src, alt: card.heading });
  else if (card.words) inside = element("span", { className: "lk-words", textContent: card.words });
  else inside = element("span", { className: "lk-gone", textContent: card.problem });
  return element("div", { className: "lk-mat" }, [inside]);
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

function match(card, tell) {
  const like = element("button", {
    className: "lk-like",
    ariaLabel: `more like ${card.id}`,
    onclick: () => tell({ like: card.id }),
  }, [mat(card)]);
  const toward = element("button", {
    className: "lk-toward",
    textContent: "⇄",
    title: "slide from the query to this one",
    ariaLabel: `slide towards ${card.id}`,
    onclick: () => tell({ toward: card.id }),
  });
  return figure(card, [like, toward, caption(card)]);
}

function button(text, enabled, onclick) {
  return element("button", { className: "lk-button", textContent: text, disabled: !enabled, onclick });
}

function slider(view, tell) {
  const input = element("input", { type: "range", min: 0, max: 1, step: 0.05, value: view.share });
  input.ariaLabel = `from ${view.ends[0]} to ${view.ends[1]}`;
  input.onchange = () => tell({ share: Number(input.value) });
  return element("label", { className: "lk-slide" }, [
    element("span", { textContent: view.ends[0] }), input, element("span", { textContent: view.ends[1] }),
  ]);
}

function render({ model, el }) {
  const tell = (message) => {
    el.querySelector(".likeness").ariaBusy = "true";
    model.send(message);
  };
  const draw = () => {
    const view = model.get("view");
    const controls = [
      button("← back", view.can_go_back, () => tell({ back: true })),
      button("‹ previous", view.page > 0, () => tell({ page: view.page - 1 })),
      element("span", { textContent: `page ${view.page + 1}` }),
      button("next ›", view.has_more, () => tell({ page: view.page + 1 })),
    ];
    if (view.ends.length === 2) controls.push(slider(view, tell));
    const status = element("div", { className: "lk-caption", textContent: view.error || view.caption });
    status.setAttribute("role", "status");
    el.replaceChildren(element("div", { className: "likeness" }, [
      element("div", { className: "lk-controls" }, controls),
      status,
      element("div", { className: "lk-row" }, [
        element("div", { className: "lk-query" }, view.query.map((card) => figure(card, [mat(card), caption(card)]))),
        element("div", { className: "lk-grid" }, view.matches.map((card) => match(card, tell))),
      ]),
    ]));
  };
  model.on("change:view", draw);
  draw();
  return () => model.off("change:view", draw);
}

export default { render };
