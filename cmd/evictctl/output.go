package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// output is how a command prints its answer.
type output string

const (
	outputText output = "text"
	outputJSON output = "json"
)

// addOutputFlag gives a command -o text|json, text unless it is told otherwise.
func addOutputFlag(cmd *cobra.Command) *output {
	o := outputText
	cmd.Flags().VarP(&o, "output", "o", "how to print the answer: text or json")
	complete := cobra.FixedCompletions([]cobra.Completion{string(outputText), string(outputJSON)}, cobra.ShellCompDirectiveNoFileComp)
	if err := cmd.RegisterFlagCompletionFunc("output", complete); err != nil {
		panic(err) // the flag was declared two lines above
	}
	return &o
}

// String returns the format's name; with Set and Type it makes output a flag.
func (o *output) String() string { return string(*o) }

// Set accepts text and json.
func (o *output) Set(text string) error {
	switch output(text) {
	case outputText, outputJSON:
		*o = output(text)
		return nil
	}
	return fmt.Errorf("want %s or %s", outputText, outputJSON)
}

// Type names the kind of value in --help.
func (o *output) Type() string { return "text|json" }

// printJSON writes v on as many lines as are good to read. Quotes and angle
// brackets stay as they are: nothing here ends in a web page.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
