// Reads an OpenAPI document as Redoc does for its page, without a browser, and says in JSON what it found.
//
//     node redoc.js SCRIPT DOCUMENT
"use strict";
const fs = require("fs");
const vm = require("vm");

const [script, document] = process.argv.slice(2);
const complaints = [];
for (const name of ["warn", "error"]) console[name] = (...words) => complaints.push(words.join(" "));
globalThis.self = globalThis;
const loaded = { exports: {} };
const load = vm.runInThisContext(`(function (module, exports, require) {${fs.readFileSync(script, "utf8")}\n})`);
load(loaded, loaded.exports, (name) => (name === "null" ? null : require(name)));

// A schema of either part has its fields in each of both.
const fields = (schema) => (schema.oneOf ? schema.oneOf.flatMap(fields) : (schema.fields || []).map((one) => one.name));
const store = new loaded.exports.AppStore(JSON.parse(fs.readFileSync(document)), "openapi.json", { disableSearch: true }, false);
const operations = store.menu.flatItems
  .filter((item) => item.type === "operation")
  .map((item) => ({
    name: `${item.httpVerb.toUpperCase()} ${item.path}`,
    title: item.name,
    parameters: item.parameters.map((one) => one.name),
    body: item.requestBody ? item.requestBody.content.mediaTypes.flatMap((one) => fields(one.schema)) : [],
    examples: item.requestBody ? item.requestBody.content.mediaTypes.flatMap((one) => Object.keys(one.examples || {})) : [],
    answers: item.responses.map((one) => one.code),
    security: item.security.flatMap((one) => one.schemes.map((scheme) => [scheme.id, ...scheme.scopes])),
  }));
console.log(JSON.stringify({ operations, complaints }));
