/** Members are cut out of JSON text as they stand, whatever stands around them. */

import { memberText } from "sandport";
import { describe, expect, it } from "vitest";
import { addMember, findMember, hasTwins } from "../../browser/src/json-text.ts";

describe("memberText", () => {
  it.each([
    ['{"id":9007199254740993}', "id", "9007199254740993"],
    [' {\n "id" : -1.50e+3 , "x":1}', "id", "-1.50e+3"],
    ['{"a":{"id":1},"id":2}', "id", "2"],
    ['{"a":"\\"id\\":3","id":4}', "id", "4"],
    ['{"a":"\\\\","id":5}', "id", "5"],
    ['{"a":[1,[2,{"id":6}],"]"],"id":7}', "id", "7"],
    ['{"id":8,"id":9}', "id", "9"],
    ['{"\\u0069d":10}', "id", "10"],
    ['{"id":"}\\""}', "id", '"}\\""'],
    ['{"p":{"a":[1,2],"b":"}"}}', "p", '{"a":[1,2],"b":"}"}'],
    ['{"id":true}', "id", "true"],
    ['{"id":[]}', "id", "[]"],
  ])("%s %s", (text, name, expected) => {
    expect(memberText(text, name)).toBe(expected);
  });

  it.each(["{}", " { } ", '{"a":1}', '{"a":{"id":1}}'])("finds nothing in %s", (text) => {
    expect(findMember(text, "id")).toBeUndefined();
  });
});

describe("addMember", () => {
  it("adds to an object and changes nothing else", () => {
    expect(addMember('{"n":9007199254740993, "error": {"code":1 } }', "error", "data", "null")).toBe(
      '{"n":9007199254740993, "error": {"code":1 ,"data":null} }',
    );
    expect(addMember('{"error":{}}', "error", "data", "null")).toBe('{"error":{"data":null}}');
  });
});

describe("hasTwins", () => {
  it.each([
    ['{"a":1,"b":2}', false],
    ["{ }", false],
    ['{"a":{"b":1,"b":2}}', false],
    ['{"a":1,"a":1}', true],
    ['{"a":[{"x":"}"}],"b":0,"a":2}', true],
    ['{"a":1,"\\u0061":2}', true],
    ['{"__proto__":1,"b":2}', false],
  ])("%s", (text, twins) => {
    expect(hasTwins(text)).toBe(twins);
  });
});
