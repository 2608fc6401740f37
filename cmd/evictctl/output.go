package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// output is the output format of a command.
type output string

const (
	outputText output = "text"
	outputJSON output = "json"
)

// addOutputFlag adds -o text|json to a command, with the default text.
func addOutputFlag(cmd *cobra.Command) *output {
	o := outputText
	cmd.Flags().VarP(&o, "output", "o", "output format: text or json")
	complete := cobra.FixedCompletions([]cobra.Completion{string(outputText), string(outputJSON)}, cobra.ShellCompDirectiveNoFileComp)
	if err := cmd.RegisterFlagCompletionFunc("output", complete); err != nil {
		panic(err) // the flag was declared two lines above
	}
	return &o
}

// String implements pflag.Value.
func (o *output) String() string { return string(*o) }

// Set implements pflag.Value.
func (o *output) Set(text string) error {
	switch output(text) {
	case outputText, outputJSON:
		*o = output(text)
		return nil
	}
	return fmt.Errorf("want %s or %s", outputText, outputJSON)
}

// Type implements pflag.Value; --help shows it.
func (o *output) Type() string { return "text|json" }

// printJSON writes v as indented JSON, without HTML escapes.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
