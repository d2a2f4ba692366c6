// The API's documentation, with a form to try each call: Swagger UI, served by this server.

const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);

follow();
dark.addEventListener("change", follow);

window.SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  displayRequestDuration: true,
  defaultModelsExpandDepth: 0,
  validatorUrl: null, // by default it sends the document to swagger.io
});
