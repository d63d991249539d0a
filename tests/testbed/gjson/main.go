// The value of a GJSON expression in the JSON of standard input, as Katib evaluates the conditions of a trial's job.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/tidwall/gjson"
)

func main() {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Print(gjson.GetBytes(text, os.Args[1]).Raw)
}
