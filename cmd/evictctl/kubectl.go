package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"
)

// kubectl calls kubectl, which has the address of the API server and the credentials: evictctl links no client.
type kubectl struct{ program, kubeconfig, context string }

// addKubectlFlags adds the flags that select a cluster to a command.
func addKubectlFlags(cmd *cobra.Command) *kubectl {
	k := &kubectl{}
	cmd.Flags().StringVar(&k.program, "kubectl", "kubectl", "call `PROGRAM` as kubectl")
	cmd.Flags().StringVar(&k.kubeconfig, "kubeconfig", "", "have kubectl read `FILE` instead of its default")
	cmd.Flags().StringVar(&k.context, "context", "", "have kubectl use this `CONTEXT` of its kubeconfig")
	return k
}

// call runs kubectl and returns what it prints. The error has kubectl's own message.
func (k *kubectl) call(ctx context.Context, args ...string) ([]byte, error) {
	return k.callWith(ctx, nil, args...)
}

// callWith is call with a standard input.
func (k *kubectl) callWith(ctx context.Context, stdin []byte, args ...string) ([]byte, error) {
	what := strings.Join(args[:min(2, len(args))], " ")
	if k.kubeconfig != "" {
		args = append(args, "--kubeconfig="+k.kubeconfig)
	}
	if k.context != "" {
		args = append(args, "--context="+k.context)
	}
	cmd := exec.CommandContext(ctx, k.program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	err := cmd.Run()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, fmt.Errorf("run %s %s: %w; install kubectl, or name it with --kubectl", k.program, what, err)
	case err != nil:
		return nil, fmt.Errorf("run %s %s: %w: %s", k.program, what, err, printable(strings.TrimSpace(stderr.String())))
	}
	return stdout.Bytes(), nil
}

// get decodes the JSON that kubectl prints of objects.
func (k *kubectl) get(ctx context.Context, into any, args ...string) error {
	text, err := k.call(ctx, append([]string{"get", args[0], "-o", "json"}, args[1:]...)...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("read what %s get %s printed: %w", k.program, args[0], err)
	}
	return nil
}
