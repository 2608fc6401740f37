// Package strict reads YAML files in which a slip must not go unnoticed.
//
// [Parse] turns the bytes of a file into a node, and [Decoder.Decode] turns
// that into Go structs by their `yaml` tags. What is wrong never stops the
// reading: every unknown field, duplicate key and wrong type becomes a
// [Problem] with the file's line and the field's path, and so does what the
// caller finds wrong with the values afterwards ([Decoder.Errorf]), so that all
// of it can be shown at once. What was decoded while there are problems is not
// to be used.
//
// A null is the same as an absent field. It is an error as an entry of a map or
// list, unless the entries are pointers. Anchors, aliases and merge keys work,
// up to a budget that no honest file reaches. Quantities may be written as plain
// numbers; every other type must be written as itself, so that `yes` is no
// boolean and `5` no string.
//
// [ParseLenient] is for files that another program owns: what is merely odd in
// them becomes a notice.
package strict
