package main

import (
	"bufio"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/evictd/evictd/agent/config/strict"
)

// replayable is a parsed scenario of either kind.
type replayable interface {
	WriteText(io.Writer) error
	WriteJSON(io.Writer) error
}

// replay parses all files and prints the result of each, with notices on stderr. If
// a file is invalid, it prints only the errors of all files.
func replay[S replayable](cmd *cobra.Command, files []string, format output, parse func(string, []byte) (S, error), notices func(S) []strict.Problem) error {
	var scenarios []S
	var errs []error
	for _, file := range files {
		s, err := readScenario(cmd.InOrStdin(), file, parse)
		scenarios, errs = append(scenarios, s), append(errs, err)
	}
	if err := strict.Join(errs...); err != nil {
		fmt.Fprintln(cmd.ErrOrStderr(), err)
		return errReported
	}
	out := bufio.NewWriter(cmd.OutOrStdout())
	for i, s := range scenarios {
		printNotices(cmd.ErrOrStderr(), notices(s))
		err := error(nil)
		if format == outputJSON {
			err = s.WriteJSON(out)
		} else {
			err = writeScenario(out, s, i, files)
		}
		if err != nil {
			return err
		}
	}
	return out.Flush()
}

func readScenario[S any](stdin io.Reader, file string, parse func(string, []byte) (S, error)) (S, error) {
	var none S
	read := func() ([]byte, error) { return strict.ReadFile(file) }
	name := file
	if file == "-" {
		read, name = func() ([]byte, error) { return strict.Read(stdin) }, "<stdin>"
	}
	data, err := read()
	if err != nil {
		return none, fmt.Errorf("read scenario: %w", err)
	}
	return parse(name, data)
}

// writeScenario prints a scenario as text, with its file name if there are several.
func writeScenario(w io.Writer, s replayable, i int, files []string) error {
	if len(files) > 1 {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s\n\n", files[i])
	}
	return s.WriteText(w)
}
