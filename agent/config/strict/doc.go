// Package strict decodes YAML files and reports every mistake in them.
//
// [Parse] parses a file into a node, and [Decoder.Decode] decodes the node into
// Go structs by their `yaml` tags. A mistake does not stop decoding: every unknown
// field, duplicate key and wrong type becomes a [Problem] with the file's line
// and the field's path, and so do invalid values that the caller reports
// afterwards ([Decoder.Errorf]). All problems can then be shown at once. Callers
// must not use the decoded values if there are problems.
//
// A null is the same as an absent field. It is an error as an entry of a map or
// list, unless the entries are pointers. Anchors, aliases and merge keys are
// supported, up to a limit on the values that they expand to. Quantities may be
// written as plain numbers; other types are not converted, so `yes` is not a
// boolean and `5` not a string.
//
// [ParseLenient] is for files that another program owns: unknown fields and
// duplicate keys become notices.
package strict
